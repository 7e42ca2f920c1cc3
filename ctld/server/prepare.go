package server

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/authn"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/internal/node"
	"github.com/tensorgrid/tensorgrid/partitions"
)

// codeBlobMissing asks the client to send a blob again.
const codeBlobMissing = "BLOB_MISSING"

// prepare makes what was asked for, which spec holds, into a specification that can run, with the
// identity that this controller's account files give the caller. known tells beside a refusal that
// the spec has come so far that a repeated request can be recognised. A component of a heterogeneous job other than
// the first has no script.
func (s *Server) prepare(spec *job.Spec, view state.Viewer, c authn.Caller, uid uint32, component bool) (ref *ctldpb.Refusal, known bool) {
	acc, ref := s.account(c, uid)
	if ref != nil {
		return ref, false
	}
	spec.UID, spec.GID, spec.Groups = acc.UID, acc.GID, acc.Groups
	spec.User, spec.Group, spec.Home, spec.Shell = acc.User, acc.Group, acc.Home, acc.Shell
	if ref := fill(spec, view, c, acc); ref != nil {
		return ref, true
	}
	if spec.Nice < 0 && !c.IsOperator() {
		return refusalOf("ESLURM_ACCESS_DENIED", fmt.Sprintf("--nice=%d: only operators may raise a priority; a user's nice value is 0 or more", spec.Nice)), true
	}
	if !component && len(spec.Script) == 0 && len(spec.ScriptHash) == 0 {
		return refusalOf("ESLURM_JOB_SCRIPT_MISSING", ""), true
	}
	if ref := check(spec, view); ref != nil {
		return ref, true
	}
	if ref := s.checkExtra(spec, view); ref != nil {
		return ref, true
	}
	return s.admission(spec, view, c, acc), true
}

// noJob refuses a request without a specification.
func noJob() *ctldpb.Refusal {
	return refusalOf("ESLURM_JOB_SCRIPT_MISSING", "the request holds no job")
}

// account says whose job it is. Only root may name somebody else.
func (s *Server) account(c authn.Caller, uid uint32) (*authn.Account, *ctldpb.Refusal) {
	if uid == 0 || uid == c.UID {
		uid = c.UID
	} else if c.UID != 0 {
		return nil, refusalOf("ESLURM_ACCESS_DENIED", fmt.Sprintf("only root may submit for uid %d", uid))
	}
	if uid == 0 {
		return nil, refusalOf("ESLURM_ACCESS_DENIED", "jobs of uid 0 are refused: no node starts a process as root; submit as a user, or with --uid")
	}
	acc, err := s.Auth.Accounts().ByUID(uid)
	if errors.Is(err, authn.ErrNoAccount) {
		return nil, refusalOf("ESLURM_USER_ID_MISSING", fmt.Sprintf("uid %d is not a user of controller %s", uid, s.Name))
	}
	if err != nil {
		return nil, refusalOf("ESLURM_USER_ID_MISSING", err.Error())
	}
	return acc, nil
}

// fill puts the defaults in that must be fixed at submission.
func fill(spec *job.Spec, view state.Viewer, c authn.Caller, acc *authn.Account) *ctldpb.Refusal {
	// Somebody who switched to another of their groups (newgrp) gets it for the job, as with Slurm.
	if c.UID == acc.UID && c.GID != acc.GID {
		for i, g := range acc.Groups {
			if g == c.GID && len(acc.GroupNames) == len(acc.Groups) {
				spec.GID, spec.Group = g, acc.GroupNames[i]
			}
		}
	}
	if spec.Partition == "" {
		p := view.DefaultPartition()
		if p == nil {
			return refusalOf("ESLURM_DEFAULT_PARTITION_NOT_SET", "name one with --partition: "+strings.Join(partitionNames(view), ", "))
		}
		spec.Partition = p.Name
	}
	if spec.Name == "" {
		spec.Name = "sbatch"
	}
	return nil
}

// check refuses what contradicts itself, is over a limit, or names what does not exist.
func check(spec *job.Spec, view state.Viewer) *ctldpb.Refusal {
	if err := spec.Validate(); err != nil {
		return specRefusal(err)
	}
	if !path.IsAbs(spec.WorkDir) {
		return refusalOf(codeInvalid, fmt.Sprintf("--chdir: %q is not an absolute path: a job needs a folder to work in", spec.WorkDir))
	}
	if spec.Array != "" {
		if _, _, err := job.ParseArray(spec.Array, view.Config().MaxArraySize); err != nil {
			return specRefusal(err)
		}
	}
	for _, hash := range [][]byte{spec.ScriptHash, spec.EnvHash} {
		if len(hash) == 0 {
			continue
		}
		if _, ok := view.Blob(hash); !ok {
			return &ctldpb.Refusal{Code: codeBlobMissing, Text: "Job script or environment is not stored", Why: fmt.Sprintf("send blob %x again", hash)}
		}
	}
	if ref := checkHosts("--nodelist", spec.NodeList, view); ref != nil {
		return ref
	}
	return checkHosts("--exclude", spec.Exclude, view)
}

func checkHosts(option, list string, view state.Viewer) *ctldpb.Refusal {
	if list == "" {
		return nil
	}
	names, err := hostlist.Expand(list)
	if err != nil {
		return refusalOf("ESLURM_INVALID_NODE_NAME", fmt.Sprintf("%s: %v", option, err))
	}
	for _, n := range names {
		if view.Node(n) == nil {
			return refusalOf("ESLURM_INVALID_NODE_NAME", fmt.Sprintf("%s: there is no node %q", option, n))
		}
	}
	return nil
}

// optionCodes is Slurm's code for an option whose number is out of bounds.
var optionCodes = map[string]string{
	"--time": "ESLURM_INVALID_TIME_LIMIT", "--time-min": "ESLURM_INVALID_TIME_LIMIT", "--begin": "ESLURM_INVALID_TIME_VALUE",
	"--nodes": "ESLURM_INVALID_NODE_COUNT", "--ntasks": "ESLURM_BAD_TASK_COUNT", "--ntasks-per-node": "ESLURM_BAD_TASK_COUNT",
	"--cpus-per-task": "ESLURM_BAD_TASK_COUNT", "--mincpus": "ESLURM_BAD_TASK_COUNT",
	"--mem": "ESLURM_INVALID_TASK_MEMORY", "--mem-per-cpu": "ESLURM_INVALID_TASK_MEMORY",
	"--gres": "ESLURM_INVALID_GRES", "--array": "ESLURM_INVALID_ARRAY", "--dependency": "ESLURM_DEPENDENCY",
	"--licenses": "ESLURM_INVALID_LICENSES", "--reservation": "ESLURM_RESERVATION_INVALID", "--deadline": "ESLURM_INVALID_TIME_VALUE",
	"--prefer": "ESLURM_INVALID_FEATURE", "--segment": "ESLURM_INVALID_NODE_COUNT",
	"--nodelist": "ESLURM_INVALID_NODE_NAME", "--exclude": "ESLURM_INVALID_NODE_NAME", "--chdir": "ESLURM_PATHNAME_TOO_LONG",
}

// specRefusal gives an invalid specification Slurm's code and line.
func specRefusal(err error) *ctldpb.Refusal {
	var spec *job.SpecError
	if errors.As(err, &spec) {
		if code, ok := optionCodes[spec.Option]; ok {
			return refusalOf(code, err.Error())
		}
	}
	if errors.Is(err, job.ErrArraySpec) {
		return refusalOf("ESLURM_INVALID_ARRAY", err.Error())
	}
	return refusalOf(codeInvalid, err.Error())
}

// admission holds the partitions' rules against the job: it goes to those of the named partitions
// that admit it, and one that may run in none is refused now, with the clause of the first.
func (s *Server) admission(spec *job.Spec, view state.Viewer, c authn.Caller, acc *authn.Account) *ctldpb.Refusal {
	for name := range strings.SplitSeq(spec.Partition, ",") {
		if view.Partition(name) == nil {
			return noPartition(view, name)
		}
	}
	if view.Feature() >= state.FeatureSched {
		// The account and QOS that it gets are part of what partitions go by.
		if r := view.MaySubmit(spec); r != nil {
			return fromState(r)
		}
		if ref := reservationGroups(spec, view, acc); ref != nil {
			return ref
		}
	}
	who := partitions.Who{UID: acc.UID, Groups: acc.GroupNames, Operator: c.IsOperator()}
	var first *ctldpb.Refusal
	var buf [4]string
	open := buf[:0]
	for name := range strings.SplitSeq(spec.Partition, ",") {
		p := view.Partition(name)
		r := partitions.Admit(p, spec, who, s.admit.nodes(view, p, s.Now()))
		switch {
		case r == nil:
			open = append(open, name)
		case first == nil:
			first = fromPartition(r)
		}
	}
	if len(open) == 0 {
		return first
	}
	if first != nil {
		spec.Partition = strings.Join(open, ",")
	}
	return nil
}

// reservationGroups holds a job against reservations for groups: the state knows no names of groups.
func reservationGroups(spec *job.Spec, view state.Viewer, acc *authn.Account) *ctldpb.Refusal {
	names := spec.RareValue(job.OptReservation)
	if names == "" {
		return nil
	}
	for name := range strings.SplitSeq(names, ",") {
		r := reservation(view, name)
		if r == nil || len(r.Groups) == 0 || r.Admits(acc.UID, acc.User, acc.GroupNames, spec.Account, spec.QOS) {
			continue
		}
		return refusalOf("ESLURM_RESERVATION_ACCESS", fmt.Sprintf("reservation %q is not for user %s with account %q and QOS %q", name, acc.User, spec.Account, spec.QOS))
	}
	return nil
}

func noPartition(view state.Viewer, name string) *ctldpb.Refusal {
	return refusalOf("ESLURM_INVALID_PARTITION_NAME", fmt.Sprintf("there is no partition %q; there are: %s", name, strings.Join(partitionNames(view), ", ")))
}

func partitionNames(view state.Viewer) []string {
	var names []string
	for p := range view.Partitions() {
		if !p.Hidden {
			names = append(names, p.Name)
		}
	}
	return names
}

// admitCache keeps what admission needs of each partition's nodes. What nodes have changes seldom,
// and walking them for each submission would be most of its cost.
type admitCache struct {
	mu    sync.RWMutex
	cfg   *state.Config
	until time.Time
	parts map[string][]partitions.Capacity
}

// admitFor is how long a change that did not come through this server may stay unseen by admission
// (which only refuses what can never run; the planner always sees the newest state).
const admitFor = time.Second

func (a *admitCache) drop() {
	a.mu.Lock()
	a.parts = nil
	a.mu.Unlock()
}

func (a *admitCache) nodes(view state.Viewer, p *partitions.Partition, now time.Time) []partitions.Capacity {
	cfg := view.Config()
	a.mu.RLock()
	list, ok := a.parts[p.Name]
	fresh := a.cfg == cfg && now.Before(a.until)
	a.mu.RUnlock()
	if ok && fresh {
		return list
	}
	list = capacities(view, p)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cfg != cfg || !now.Before(a.until) || a.parts == nil {
		a.cfg, a.until, a.parts = cfg, now.Add(admitFor), map[string][]partitions.Capacity{}
	}
	a.parts[p.Name] = list
	return list
}

func capacities(view state.Viewer, p *partitions.Partition) []partitions.Capacity {
	list := make([]partitions.Capacity, 0, len(p.Nodes))
	for _, name := range p.Nodes {
		n := view.Node(name)
		if n == nil {
			continue
		}
		list = append(list, partitions.Capacity{
			Name: n.Name, CPUs: n.Config.CPUs, Mem: n.Config.Mem, TmpDisk: n.Config.TmpDisk,
			Sockets: n.Config.Sockets, Cores: n.Config.CoresPerSocket, Threads: n.Config.ThreadsPerCore,
			Features: n.Features, Gres: n.Config.Gres, Usable: n.State != node.Future,
		})
	}
	return list
}
