package leader

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/state"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// A credential is valid from credentialSkew before it is signed, for clocks that differ, and for
// credentialLife after. A run cannot be started twice with it in any case.
const (
	credentialSkew = 5 * time.Minute
	credentialLife = time.Hour
)

// buildLaunch makes the order to start a record's batch step on its first node.
func (l *Leader) buildLaunch(view state.Viewer, j *state.Job, node string) (*nodepb.Launch, error) {
	script := j.Spec.Script
	if len(j.Spec.ScriptHash) > 0 {
		blob, ok := view.Blob(j.Spec.ScriptHash)
		if !ok {
			return nil, fmt.Errorf("script blob %x is missing", j.Spec.ScriptHash)
		}
		script = blob
	}
	users := noUserEnv
	if len(j.Spec.EnvHash) > 0 {
		blob, ok := view.Blob(j.Spec.EnvHash)
		if !ok {
			return nil, fmt.Errorf("environment blob %x is missing", j.Spec.EnvHash)
		}
		users = l.envs.get(j.Spec.EnvHash, blob)
	}
	env := l.environment(view, j, node, users)
	c := l.credential(view, j, node)
	c.Payload = cred.PayloadDigest(script, j.Spec.Args, env)
	if err := c.Validate(); err != nil {
		return nil, err
	}
	launch := &nodepb.Launch{Key: runKey{j.ID, j.Run, job.BatchStep}.proto(), Credential: c.Marshal(), Script: script, Env: env, Args: j.Spec.Args}
	key, certificate := l.Signer()
	if launch.Certificate = certificate; len(key) > 0 {
		launch.Signature = cred.Sign(key, launch.Credential)
	}
	return launch, nil
}

// credential fills in all but the payload's digest.
func (l *Leader) credential(view state.Viewer, j *state.Job, node string) *cred.Launch {
	spec, now, cfg := j.Spec, l.nodeClock(node), view.Config()
	in, out, errs := l.files(view, j, node)
	shared := true
	if p := view.Partition(j.Partition); p != nil {
		shared = p.SharedFS
	}
	return &cred.Launch{
		Cluster: cfg.Cluster, Node: node, JobID: j.ID, Run: j.Run, Step: job.BatchStep,
		UID: spec.UID, GID: spec.GID, Groups: spec.Groups, User: spec.User, Home: spec.Home, Shell: spec.Shell,
		NotBefore: now.Add(-credentialSkew).UnixMilli(), Expires: now.Add(credentialLife).UnixMilli(),
		Alloc: j.Allocs[0], NodeList: nodeList(j), NodeIndex: 0, NumNodes: uint32(len(j.Allocs)),
		WorkDir: spec.WorkDir, StdIn: in, StdOut: out, StdErr: errs,
		Append: spec.OpenMode == "append" || spec.OpenMode == "" && cfg.JobFileAppend,
		Umask:  spec.Umask, TimeLimit: nodeLimit(view, j), KillWait: cfg.KillWait, Signal: spec.Signal,
		SharedFS: shared, Requeue: spec.Requeue > 0 || spec.Requeue == 0 && cfg.JobRequeue,
		Lease:   j.Lease,
		JobName: jobName(j), Partition: j.Partition, Account: spec.Account, Restarts: j.Restarts,
	}
}

// files gives the run's standard input, output and error: patterns filled in, relative to the work
// directory. Without an error file errors go to the output.
func (l *Leader) files(view state.Viewer, j *state.Job, node string) (in, out, errs string) {
	spec := j.Spec
	isArray := j.ArrayID != 0
	vars := job.PatternVars{
		JobID: j.ID, ArrayJob: j.ID, Task: j.ArrayTask, StepID: "batch", User: spec.User, Name: jobName(j),
		Host: node, Restarts: j.Restarts, IsArray: isArray, // the node's name: hosts may carry several agents
	}
	if isArray {
		vars.ArrayJob = j.ArrayID
	}
	expand := func(pattern string) string {
		name := job.ExpandPattern(pattern, vars)
		if !path.IsAbs(name) {
			name = path.Join(spec.WorkDir, name)
		}
		return name
	}
	in = "/dev/null"
	if spec.StdIn != "" {
		in = expand(spec.StdIn)
	}
	pattern := spec.StdOut
	if pattern == "" {
		pattern = job.DefaultOutput(isArray)
	}
	out = expand(pattern)
	errs = out
	if spec.StdErr != "" {
		errs = expand(spec.StdErr)
	}
	return in, out, errs
}

// hostname is the short host name of a node.
func hostname(view state.Viewer, name string) string {
	host := name
	if n := view.Node(name); n != nil && n.Hostname != "" {
		host = n.Hostname
	}
	short, _, _ := strings.Cut(host, ".")
	return short
}

func jobName(j *state.Job) string {
	if j.Spec.Name != "" {
		return j.Spec.Name
	}
	return "sbatch"
}

func nodeList(j *state.Job) string {
	names := make([]string, len(j.Allocs))
	for i := range j.Allocs {
		names[i] = j.Allocs[i].Node
	}
	return hostlist.Compress(names)
}
