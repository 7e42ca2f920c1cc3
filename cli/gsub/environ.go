package gsub

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// ownedByJob are the variables that a running job sets for itself. A job that is submitted from inside
// another must not inherit them: a stale SLURM_NTASKS would change what its steps do.
var ownedByJob = []string{
	"SLURM_JOB_", "SLURM_JOBID", "SLURM_ARRAY_", "SLURM_STEP", "SLURM_TASK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
	"SLURM_NNODES", "SLURM_NODELIST", "SLURM_NODE_ALIASES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_GTIDS", "SLURM_CPUS_", "SLURM_GPUS",
	"SLURM_SHARDS_ON_NODE", "SLURM_MEM_PER_", "SLURM_RESTART_COUNT", "SLURM_SUBMIT_", "SLURM_TOPOLOGY_", "SLURM_HET_", "SLURM_EXPORT_ENV",
	"SLURM_GET_USER_ENV", "SLURM_WORKING_CLUSTER", "SLURM_CLUSTER_NAME", "SLURM_PRIO_PROCESS", "SLURM_LAUNCH_NODE_", "SLURM_SRUN_COMM_",
	"SLURM_SCRIPT_CONTEXT", "SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_THREADS_PER_CORE", "SLURM_OVERCOMMIT", "SLURMD_", "SRUN_DEBUG", "GRID_JOB_",
	"GRID_STEP_",
}

func owned(variable string) bool {
	return slices.ContainsFunc(ownedByJob, func(p string) bool { return strings.HasPrefix(variable, p) })
}

// exportItem is one part of --export: a name, or a name with a value.
type exportItem struct {
	name, value string
	assigned    bool
}

// parseExport splits --export at commas outside quotes. Quotes stay out of the value. ALL may stand anywhere.
func parseExport(s string) (items []exportItem, all bool, err error) {
	var part strings.Builder
	quote := byte(0)
	flush := func() error {
		word := part.String()
		part.Reset()
		name, value, assigned := strings.Cut(word, "=")
		switch {
		case word == "":
		case word == "ALL":
			all = true
		case name == "":
			return fmt.Errorf("Invalid --export specification\n%q has no name", word)
		default:
			items = append(items, exportItem{name, value, assigned})
		}
		return nil
	}
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == ',':
			if err := flush(); err != nil {
				return nil, false, err
			}
		default:
			part.WriteByte(c)
		}
	}
	if quote != 0 {
		return nil, false, fmt.Errorf("Invalid --export specification\nthe quote %c is not closed", quote)
	}
	return items, all, flush()
}

// variables is an environment under construction; the later of two equal names wins.
type variables struct {
	order []string
	value map[string]string
}

func (v *variables) set(name, value string) {
	if _, known := v.value[name]; !known {
		v.order = append(v.order, name)
	}
	v.value[name] = value
}

func (v *variables) merge(environ []string, take func(name string) bool) {
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && name != "" && take(name) {
			v.set(name, value)
		}
	}
}

// environment builds what the job is given: NUL-separated NAME=value.
func (r *request) environment() ([]byte, error) {
	v := &variables{value: map[string]string{}}
	slurm := func(name string) bool { return strings.HasPrefix(name, "SLURM_") && !owned(name) }
	export := r.spec.Export
	switch export {
	case "NONE", "NIL":
		v.merge(r.env.Environ, slurm)
		r.spec.GetUserEnv = r.spec.GetUserEnv || export == "NONE"
	default:
		items, all, err := parseExport(export)
		if err != nil {
			return nil, err
		}
		if all || export == "" {
			v.merge(r.env.Environ, func(name string) bool { return !owned(name) })
		} else {
			v.merge(r.env.Environ, slurm)
			r.spec.GetUserEnv = true
		}
		for _, it := range items {
			if it.assigned {
				v.set(it.name, it.value)
			} else if value, ok := r.env.Lookup(it.name); ok {
				v.set(it.name, value)
			}
		}
	}
	if err := r.mergeFile(v); err != nil {
		return nil, err
	}
	v.set("SLURM_SUBMIT_DIR", r.env.Dir)
	v.set("SLURM_SUBMIT_HOST", r.spec.SubmitHost)
	if export != "" {
		v.set("SLURM_EXPORT_ENV", export)
	}
	if r.spec.GetUserEnv {
		v.set("SLURM_GET_USER_ENV", "1")
	}
	var b bytes.Buffer
	for _, name := range v.order {
		fmt.Fprintf(&b, "%s=%s\x00", name, v.value[name])
	}
	if b.Len() > job.MaxEnv {
		return nil, &textError{fmt.Sprintf("The environment has %d bytes, the limit is %d; use --export to send less", b.Len(), job.MaxEnv)}
	}
	return b.Bytes(), nil
}

// mergeFile adds the variables of --export-file, which is a path or the number of an open descriptor.
func (r *request) mergeFile(v *variables) error {
	if r.exportFile == "" {
		return nil
	}
	var f *os.File
	if fd, err := strconv.ParseUint(r.exportFile, 10, 16); err == nil && fd > 2 {
		f = os.NewFile(uintptr(fd), "export-file")
	} else if f, err = os.Open(r.exportFile); err != nil {
		return &textError{fmt.Sprintf("Unable to open --export-file: %v", err)}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, job.MaxEnv+1))
	if err != nil {
		return &textError{fmt.Sprintf("Unable to read --export-file: %v", err)}
	}
	if len(b) > job.MaxEnv {
		return &textError{fmt.Sprintf("--export-file is over the limit of %d bytes", job.MaxEnv)}
	}
	v.merge(strings.Split(string(b), "\x00"), func(string) bool { return true })
	return nil
}
