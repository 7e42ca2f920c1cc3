package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// hookPath is the PATH of prolog and epilog: nothing of the user's reaches a program of root's.
const hookPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// runHook runs prolog or epilog and waits for it, at most HookTime. exit is how the step ended, when
// that is known.
func (s *Server) runHook(ctx context.Context, program, scriptContext string, p *storedPlan, exit *launch.Exit) error {
	if err := checkOurs(program, s.conf.Rootless); err != nil {
		return err
	}
	null := s.null.Fd()
	attr := &syscall.ProcAttr{Dir: "/", Env: hookEnv(scriptContext, p, exit), Files: []uintptr{null, null, null},
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}} // threads of Go's end with the process only
	pid, ended, err := s.reaper.start([]string{program}, attr, true)
	if err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	timer := time.NewTimer(s.conf.HookTime)
	defer timer.Stop()
	select {
	case status := <-ended:
		return hookResult(program, status)
	case <-timer.C:
		err = fmt.Errorf("%s: killed after %v", program, s.conf.HookTime)
	case <-ctx.Done():
		err = fmt.Errorf("%s: %w", program, ctx.Err())
	}
	s.reaper.killGroup(pid)
	<-ended
	return err
}

func hookResult(program string, status syscall.WaitStatus) error {
	switch {
	case status.Signaled():
		return fmt.Errorf("%s: ended by signal %d", program, status.Signal())
	case status.ExitStatus() != 0:
		return fmt.Errorf("%s: exit status %d", program, status.ExitStatus())
	}
	return nil
}

// hookEnv is the whole environment of a prolog or epilog.
func hookEnv(scriptContext string, p *storedPlan, exit *launch.Exit) []string {
	v := &p.Vars
	id := strconv.FormatUint(uint64(p.Key.Job), 10)
	env := []string{
		"PATH=" + hookPath,
		"SLURM_CLUSTER_NAME=" + p.Cluster,
		"SLURM_JOBID=" + id,
		"SLURM_JOB_ACCOUNT=" + plain(v.Account),
		"SLURM_JOB_GID=" + strconv.FormatUint(uint64(p.GID), 10),
		"SLURM_JOB_ID=" + id,
		"SLURM_JOB_NAME=" + plain(v.JobName),
		"SLURM_JOB_NODELIST=" + plain(v.NodeList),
		"SLURM_JOB_PARTITION=" + plain(v.Partition),
		"SLURM_JOB_UID=" + strconv.FormatUint(uint64(p.UID), 10),
		"SLURM_JOB_USER=" + plain(v.User),
		"SLURM_JOB_WORK_DIR=" + plainPath(v.WorkDir),
		"SLURM_NODELIST=" + plain(v.NodeList),
		"SLURM_SCRIPT_CONTEXT=" + scriptContext,
		"SLURM_UID=" + strconv.FormatUint(uint64(p.UID), 10),
		"SLURMD_NODENAME=" + p.Node,
	}
	if v.Devices != "" {
		env = append(env, "CUDA_VISIBLE_DEVICES="+v.Devices, "SLURM_JOB_GPUS="+v.Devices)
	}
	if exit != nil {
		env = append(env,
			"SLURM_JOB_DERIVED_EC=0", // the highest of the steps that srun starts: none
			"SLURM_JOB_EXIT_CODE="+strconv.Itoa(exit.Code<<8|exit.Signal), // as wait(2) gives it
			fmt.Sprintf("SLURM_JOB_EXIT_CODE2=%d:%d", exit.Code, exit.Signal))
	}
	return env
}

// plain empties a value with characters that no name of ours has: it comes from the controller's
// tables, and a script of root's may use it unquoted.
func plain(s string) string { return only(s, "._-@+[],:") }

// plainPath is plain for a path.
func plainPath(s string) string { return only(s, "._-@+,:=/") }

func only(s, marks string) string {
	ok := strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(marks, r))
	}) < 0
	if !ok {
		return ""
	}
	return s
}
