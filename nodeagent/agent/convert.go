package agent

import (
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
	"github.com/tensorgrid/tensorgrid/nodeagent/shepherd"
)

// maxText bounds a text for people in a message to the controller.
const maxText = 1024

func keyToPB(k launch.Key) *nodepb.StepKey {
	return &nodepb.StepKey{JobId: k.Job, Run: k.Run, Step: k.Step}
}

func keyFromPB(k *nodepb.StepKey) launch.Key {
	return launch.Key{Job: k.GetJobId(), Run: k.GetRun(), Step: k.GetStep()}
}

func inventoryToPB(i node.Inventory) *nodepb.Inventory {
	return &nodepb.Inventory{
		Cpus: i.CPUs, Boards: i.Boards, Sockets: i.Sockets, CoresPerSocket: i.CoresPerSocket,
		ThreadsPerCore: i.ThreadsPerCore, Mem: i.Mem, TmpDisk: i.TmpDisk, Gres: i.Gres,
		Os: i.OS, Arch: i.Arch, Hostname: i.Hostname,
	}
}

func startRequest(l *nodepb.Launch) *launch.Request {
	return &launch.Request{Start: &launch.Start{
		Credential: l.GetCredential(), Signature: l.GetSignature(), Certificate: l.GetCertificate(),
		Payload: cred.AppendPayload(nil, l.GetScript(), l.GetArgs(), l.GetEnv()),
	}}
}

func (a *Agent) reportFrom(rec *shepherd.Record) *nodepb.Report {
	return &nodepb.Report{
		Key: keyToPB(rec.Key), Node: a.cfg.Node,
		ExitCode: int32(rec.ExitCode), Signal: int32(rec.Signal), Oom: rec.OOM,
		StartMs: rec.Start, EndMs: rec.End, KilledFor: nodepb.Kill_Why(rec.Why),
		Error: clip(rec.Err), Cause: nodepb.LaunchResult_Cause(rec.Cause), StdoutError: clip(rec.StdoutError),
		UserUs: rec.UserUS, SysUs: rec.SysUS, MaxRss: rec.MaxRSS,
	}
}

// lostReport says that nobody is left who knows how the step ended. That is the loss of a run that was started, and no
// failure to start one: what ends all processes of a node, its own shutdown say, does not speak against the next run.
func (a *Agent) lostReport(k launch.Key, start int64, text string) *nodepb.Report {
	return &nodepb.Report{
		Key: keyToPB(k), Node: a.cfg.Node, Lost: true, Error: clip(text), StartMs: start,
		EndMs: a.d.Now().UnixMilli(),
	}
}

// clip keeps a text within maxText bytes, whole characters only, and valid for protobuf.
func clip(s string) string { return clipTo(s, maxText) }

func clipTo(s string, max int) string {
	out := make([]byte, 0, min(len(s), max))
	for _, c := range s { // an invalid byte comes as U+FFFD
		if enc := string(c); len(out)+len(enc) <= max {
			out = append(out, enc...)
		} else {
			break
		}
	}
	return string(out)
}

// terminateFrom gives what a shepherd has to be told for k.
func terminateFrom(k *nodepb.Kill, killWait int64) *shepherd.Terminate {
	t := &shepherd.Terminate{Why: uint8(k.GetWhy()), KillWait: killWait, Note: clip(k.GetNote())}
	if k.GetKillWaitMs() > 0 {
		t.KillWait = k.GetKillWaitMs()
	}
	if k.GetHow() == nodepb.Kill_KILL {
		t.Now, t.KillWait = true, 0
	}
	return t
}

func staleTerminate() *shepherd.Terminate {
	return &shepherd.Terminate{Why: uint8(job.WhyStale), Now: true}
}
