// Package fsm turns log entries into changes of the state: it decodes, and calls one method of
// the state for each command. The same log gives the same state: it does no I/O while applying,
// knows no clock and keeps no log.
package fsm

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
)

// Version is the newest feature level of log entries and snapshots that this program reads. It writes
// the level that the state has, which all voters know.
const Version = 3

// MaxEntryCommands bounds the commands of one entry.
const MaxEntryCommands = 256

// ErrVersion is wrapped by errors about entries and snapshots that a newer program wrote.
var ErrVersion = errors.New("written by a newer version")

// ErrCorrupt is wrapped by errors about entries and snapshots that cannot be read.
var ErrCorrupt = errors.New("corrupt")

// FSM applies entries to a store.
type FSM struct {
	store   *state.Store
	decoder decoder // of ApplyEntry, which is called one at a time
}

// New gives an FSM that changes store, which nothing else may change.
func New(store *state.Store) *FSM { return &FSM{store: store} }

// Store is the state that entries are applied to.
func (f *FSM) Store() *state.Store { return f.store }

// ApplyEntry applies one entry of the log and gives one result for each of its commands. An error
// (an unknown command, a newer version, bytes that are no entry) means that nothing was applied
// and that this replica must not go on.
func (f *FSM) ApplyEntry(index uint64, data []byte) ([]Result, error) {
	d := &f.decoder
	defer d.release()
	version, ms, err := d.header(data)
	if err != nil {
		return nil, fmt.Errorf("log entry %d: %w: %w", index, ErrCorrupt, err)
	}
	if version > Version {
		return nil, fmt.Errorf("log entry %d has version %d, this program reads up to %d: %w", index, version, Version, ErrVersion)
	}
	if len(d.raw) > MaxEntryCommands {
		return nil, fmt.Errorf("log entry %d: %w: %d commands, the limit is MaxEntryCommands=%d", index, ErrCorrupt, len(d.raw), MaxEntryCommands)
	}
	list, err := d.commands(index, version)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(list))
	f.store.Apply(index, ms, func(t *state.Tx) {
		for i := range list {
			if c := &list[i]; c.other == nil {
				results[i] = submitted(t.Submit(c.submit.key, c.submit.digest, c.submit.spec))
			} else {
				results[i] = apply(t, c.other)
			}
		}
	})
	return results, nil
}

// apply is the table of commands other than Submit.
func apply(t *state.Tx, c *logpb.Command) Result {
	switch c := c.Of.(type) {
	case *logpb.Command_PutBlob:
		return refused(t.PutBlob(c.PutBlob.Uid, c.PutBlob.Hash, c.PutBlob.Total, c.PutBlob.Offset, c.PutBlob.Data))
	case *logpb.Command_Plan:
		return Result{Taken: t.Plan(PlanFromLog(c.Plan))}
	case *logpb.Command_Launched:
		return nothing(t.Launched, launchedFromLog(c.Launched))
	case *logpb.Command_Reported:
		return nothing(t.Reported, reportedFromLog(c.Reported))
	case *logpb.Command_RegisterNode:
		return refused(t.RegisterNode(registrationFromLog(c.RegisterNode)))
	case *logpb.Command_NodeUpdate:
		return refused(t.UpdateNode(nodeUpdateFromLog(c.NodeUpdate)))
	case *logpb.Command_Cancel:
		return perJob(t.Cancel(cancelFromLog(c.Cancel)))
	case *logpb.Command_Control:
		return perJob(t.Control(controlFromLog(c.Control)))
	case *logpb.Command_UpdateJob:
		return perJob(t.UpdateJob(jobUpdateFromLog(c.UpdateJob)))
	case *logpb.Command_SetConfig:
		return refused(t.SetConfig(configFromLog(c.SetConfig)))
	case *logpb.Command_PartitionUpdate:
		return refused(t.UpdatePartition(c.PartitionUpdate.Name, c.PartitionUpdate.Set, callerFromLog(c.PartitionUpdate.Caller)))
	case *logpb.Command_JobTimer:
		return nothing(t.JobTimer, timerFromLog(c.JobTimer))
	case *logpb.Command_Purge:
		return Result{Taken: t.Purge(c.Purge.EndedBeforeMs, c.Purge.Keep, c.Purge.Max)}
	case *logpb.Command_NodeSilent:
		return refused(t.NodeSilent(silenceFromLog(c.NodeSilent)))
	case *logpb.Command_RaiseFeature:
		t.RaiseFeature(c.RaiseFeature.Level)
	case *logpb.Command_HashMark:
		return Result{Mark: true}
	case *logpb.Command_HashCheck:
		return hashCheck(c.HashCheck)
	case *logpb.Command_SetController:
		return refused(t.SetController(controllerFromLog(c.SetController), c.SetController.Remove))
	case *logpb.Command_CreateJoinToken:
		return refused(t.CreateJoinToken(newJoinTokenFromLog(c.CreateJoinToken)))
	case *logpb.Command_UseJoinToken:
		return refused(t.UseJoinToken(c.UseJoinToken.Id, c.UseJoinToken.SecretSha256, c.UseJoinToken.Role, c.UseJoinToken.Name))
	case *logpb.Command_RevokeJoinToken:
		return refused(t.RevokeJoinToken(c.RevokeJoinToken.Id, callerFromLog(c.RevokeJoinToken.Caller)))
	case *logpb.Command_AccountingChange:
		return changeAccounting(t, c.AccountingChange)
	case *logpb.Command_ReservationChange:
		return changeReservation(t, c.ReservationChange)
	case *logpb.Command_UsageTick:
		return refused(t.UsageTick())
	case *logpb.Command_SubmitHet:
		return submitHet(t, c.SubmitHet)
	}
	return Result{} // Noop: an entry that only proves the log moves
}

func refused(r *state.Refusal) Result { return Result{Refused: refusal(r)} }

func refusal(r *state.Refusal) *Refusal { return (*Refusal)(r) }

// hashCheck hands the leader's hash on; one that is none can differ from no other.
func hashCheck(c *logpb.HashCheck) Result {
	if len(c.Sha256) != sha256.Size {
		return Result{Refused: &Refusal{Code: "ESLURM_INVALID_HASH", Text: "Invalid hash of the state", Why: fmt.Sprintf("it has %d bytes, not %d", len(c.Sha256), sha256.Size)}}
	}
	return Result{Check: &HashCheck{Index: c.Index, SHA256: [sha256.Size]byte(c.Sha256), Leader: c.Leader}}
}

func submitted(id uint32, duplicate bool, r *state.Refusal) Result {
	return Result{JobID: id, Duplicate: duplicate, Refused: refusal(r)}
}

func nothing[T any](f func(*T), v *T) Result {
	f(v)
	return Result{}
}

func perJob(list []state.JobResult) Result {
	r := Result{Jobs: make([]JobResult, len(list))}
	for i, j := range list {
		r.Jobs[i] = JobResult{Job: j.Job, Refused: refusal(j.Refused)}
	}
	return r
}

// View is the state after the last applied entry.
func (f *FSM) View() *state.View { return f.store.View() }
