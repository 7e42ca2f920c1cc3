package gsub

import (
	"github.com/tensorgrid/tensorgrid/cli/getopt"
	"github.com/tensorgrid/tensorgrid/cli/program"
)

// setter takes the value of one option.
type setter func(r *request, value string) error

// entry is an option with the variable that stands for it and what it does. Without set, the option is
// kept with the job by its name; with refuse, it is refused with that text.
type entry struct {
	getopt.Option
	env    string // SBATCH_ + env
	set    setter
	refuse string
}

func flag(long string, short byte, env, help string, set setter) entry {
	return entry{Option: getopt.Option{Long: long, Short: short, Help: help}, env: env, set: set}
}

func value(long string, short byte, val, env, help string, set setter) entry {
	return entry{Option: getopt.Option{Long: long, Short: short, Arg: getopt.RequiredArg, Value: val, Help: help}, env: env, set: set}
}

func maybe(long string, short byte, val, env, help string, set setter) entry {
	return entry{Option: getopt.Option{Long: long, Short: short, Arg: getopt.OptionalArg, Value: val, Help: help}, env: env, set: set}
}

func (e entry) alias(names ...string) entry { e.Alias = names; return e }

func refused(long string, arg getopt.Arg, env, text string) entry {
	return entry{Option: getopt.Option{Long: long, Arg: arg, Help: "refused: " + text}, env: env, refuse: text}
}

// table is sbatch's options. Those that would change where or how a job runs and are not built are refused
// by name; those that only tune it are kept with the job.
func table() []entry {
	t := append(jobOptions(), resourceOptions()...)
	t = append(t, planningOptions()...)
	t = append(t, clientOptions()...)
	t = append(t, keptOptions()...)
	t = append(t, refusedOptions()...)
	for _, o := range program.CommonOptions() {
		t = append(t, entry{Option: o, set: func(*request, string) error { return nil }})
	}
	return t
}

func jobOptions() []entry {
	return []entry{
		value("account", 'A', "NAME", "ACCOUNT", "charge this account", str(func(r *request) *string { return &r.spec.Account })),
		value("array", 'a', "LIST", "ARRAY_INX", "one task for each number, as 0-15, 1,3,5, 1-9:2; %N runs N at once", setArray),
		value("begin", 'b', "TIME", "", "not before this time, as now+1hour or 2026-11-30T10:00", setBegin),
		value("chdir", 'D', "DIR", "", "work in this folder", str(func(r *request) *string { return &r.spec.WorkDir })).alias("workdir"),
		value("comment", 0, "TEXT", "", "a remark to keep with the job", str(func(r *request) *string { return &r.spec.Comment })),
		value("constraint", 'C', "LIST", "CONSTRAINT", "only nodes with these features", str(func(r *request) *string { return &r.spec.Constraint })),
		value("dependency", 'd', "LIST", "", "wait for other jobs, as afterok:12", setDependency),
		value("error", 'e', "FILE", "ERROR", "where standard error goes; the same place as output when not given", str(func(r *request) *string { return &r.spec.StdErr })),
		value("export", 0, "LIST", "EXPORT", "variables for the job: ALL, NONE, NIL, or a list of NAME and NAME=value", str(func(r *request) *string { return &r.spec.Export })),
		value("export-file", 0, "FILE", "", "variables for the job, NAME=value with a NUL byte after each; a number is a descriptor", str(func(r *request) *string { return &r.exportFile })),
		maybe("get-user-env", 0, "TIME", "GET_USER_ENV", "give the job the variables of a login", func(r *request, _ string) error { r.spec.GetUserEnv = true; return nil }),
		flag("hold", 'H', "", "submit it held", func(r *request, _ string) error { r.spec.Hold = true; return nil }),
		value("input", 'i', "FILE", "INPUT", "where standard input comes from; nothing when not given", str(func(r *request) *string { return &r.spec.StdIn })),
		value("job-name", 'J', "NAME", "JOB_NAME", "the job's name; the script's when not given", str(func(r *request) *string { return &r.spec.Name })),
		maybe("nice", 0, "N", "", "lower the priority by N, 100 when no number is given", setNice),
		flag("no-requeue", 0, "NO_REQUEUE", "never run it again", func(r *request, _ string) error { r.spec.Requeue = -1; return nil }),
		value("open-mode", 0, "append|truncate", "OPEN_MODE", "what to do with output files that exist", setOpenMode),
		value("output", 'o', "FILE", "OUTPUT", "where standard output goes; %j is the id, %A and %a array and task, %x the name", str(func(r *request) *string { return &r.spec.StdOut })),
		value("partition", 'p', "LIST", "PARTITION", "where to run; the first of a list that can start it", str(func(r *request) *string { return &r.spec.Partition })),
		value("priority", 0, "N|TOP", "", "refused to all but root; gctl update sets priorities", setPriority),
		value("qos", 'q', "NAME", "QOS", "quality of service", str(func(r *request) *string { return &r.spec.QOS })),
		maybe("requeue", 0, "expedite", "REQUEUE", "it may run again after a node failed; the value is taken and makes no difference", setRequeue),
		value("signal", 0, "[B:]SIG[@S]", "SIGNAL", "send this signal S seconds (60) before the time limit; B: to the script only", setSignal),
		value("time", 't', "TIME", "TIMELIMIT", "time limit: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; 0 for none", setTime),
		value("time-min", 0, "TIME", "", "the limit may be cut down to this so that it starts sooner", setTimeMin),
	}
}

func resourceOptions() []entry {
	return []entry{
		value("cpus-per-gpu", 0, "N", "CPUS_PER_GPU", "CPUs for each GPU", gpuNumber("cpus-per-gpu")),
		value("cpus-per-task", 'c', "N", "", "CPUs for each task", setCPUs),
		value("exclude", 'x', "NODES", "", "not on these nodes; a file when it holds a slash", setExclude),
		maybe("exclusive", 0, "MODE", "EXCLUSIVE", "no other jobs on its nodes; =user: none of other users; =topo: nor in its block", setExclusive),
		value("gpus", 'G', "[TYPE:]N", "GPUS", "GPUs in all, the same number on each node", gpuText("gpus")),
		value("gpus-per-node", 0, "[TYPE:]N", "GPUS_PER_NODE", "GPUs on each node", gpuText("gpus-per-node")),
		value("gpus-per-task", 0, "[TYPE:]N", "GPUS_PER_TASK", "GPUs for each task", gpuText("gpus-per-task")),
		value("gres", 0, "LIST", "GRES", "generic resources on each node, as gpu:a100:2; help lists what there is", setGres),
		value("mem", 0, "SIZE", "MEM_PER_NODE", "memory on each node, in MiB unless K, M, G, T; 0 = all of it", setMem("mem")),
		value("mem-per-cpu", 0, "SIZE", "MEM_PER_CPU", "memory for each CPU", setMem("mem-per-cpu")),
		value("mem-per-gpu", 0, "SIZE", "MEM_PER_GPU", "memory for each GPU", setMem("mem-per-gpu")),
		value("mincpus", 0, "N", "", "CPUs that each node must give", number("mincpus", func(r *request) *uint32 { return &r.spec.MinCPUsPerNode })),
		value("nodefile", 'F', "FILE", "", "on the nodes that this file lists", setNodeFile),
		value("nodelist", 'w', "NODES", "", "on these nodes, as n[1-4]; a file when it holds a slash", setNodeList),
		value("nodes", 'N', "MIN[-MAX]", "", "how many nodes; a list is taken when no number is left out, as 2,3,4", setNodes),
		value("ntasks", 'n', "N", "", "how many tasks", number("ntasks", func(r *request) *uint32 { return &r.spec.NTasks })),
		value("ntasks-per-gpu", 0, "N", "", "tasks for each GPU", gpuNumber("ntasks-per-gpu")),
		value("ntasks-per-node", 0, "N", "", "tasks on each node; at most, with -n", number("ntasks-per-node", func(r *request) *uint32 { return &r.spec.NTasksPerNode })).alias("tasks-per-node"),
		value("tmp", 0, "SIZE", "", "disk space that each node must have in its temporary folder", setTmp),
		value("tres-per-task", 0, "LIST", "TRES_PER_TASK", "resources of each task, as cpu=4,gres/gpu=1", setTresPerTask),
	}
}

func clientOptions() []entry {
	return []entry{
		value("clusters", 'M', "NAME", "CLUSTERS", "the cluster's own name; there are no others", setClusters).alias("cluster"),
		flag("ignore-pbs", 0, "IGNORE_PBS", "do not read #PBS and #BSUB lines", func(r *request, _ string) error { r.ignorePBS = true; return nil }),
		flag("parsable", 0, "", "print the id and nothing else", func(r *request, _ string) error { r.parsable = true; return nil }),
		flag("quiet", 'Q', "", "no advice", func(r *request, _ string) error { r.quiet = true; return nil }),
		flag("test-only", 0, "", "say when it would start, submit nothing", func(r *request, _ string) error { r.testOnly = true; return nil }),
		value("uid", 0, "USER", "", "submit for this user (root only)", setUID),
		flag("verbose", 'v', "DEBUG", "say what is done", func(r *request, _ string) error { r.verbose++; return nil }),
		flag("wait", 'W', "WAIT", "wait for the end of the job and exit with its code", func(r *request, _ string) error { r.wait = true; return nil }),
		value("wrap", 0, "COMMAND", "", "run this command line instead of a script", func(r *request, v string) error { r.wrap, r.wrapped = v, true; return nil }),
	}
}

// keptOptions tune a job without changing what it may use; whoever can act on them finds them with the job.
func keptOptions() []entry {
	kept := func(long string, short byte, arg getopt.Arg, env string, alias ...string) entry {
		return entry{Option: getopt.Option{Long: long, Short: short, Arg: arg, Alias: alias}, env: env}
	}
	const no, req, opt = getopt.NoArg, getopt.RequiredArg, getopt.OptionalArg
	return []entry{
		kept("acctg-freq", 0, req, "ACCTG_FREQ"), kept("batch", 0, req, "BATCH"),

		kept("cpu-bind", 0, req, "", "cpu_bind"), kept("cpu-freq", 0, req, "CPU_FREQ_REQ"),
		kept("delay-boot", 0, req, "DELAY_BOOT"), kept("distribution", 'm', req, "DISTRIBUTION"), kept("extra", 0, req, ""),
		kept("gpu-bind", 0, req, "GPU_BIND"), kept("gpu-freq", 0, req, "GPU_FREQ"), kept("tres-bind", 0, req, "TRES_BIND"),
		kept("gres-flags", 0, req, "GRES_FLAGS"), kept("hint", 0, req, "HINT"),
		kept("mail-type", 0, req, ""), kept("mail-user", 0, req, ""), kept("mcs-label", 0, req, ""),
		kept("mem-bind", 0, req, "MEM_BIND", "mem_bind"), kept("network", 0, req, "NETWORK"), kept("no-kill", 'k', opt, "NO_KILL"),
		kept("ntasks-per-core", 0, req, ""), kept("ntasks-per-socket", 0, req, ""), kept("oom-kill-step", 0, opt, ""),
		kept("power", 0, req, ""),
		kept("profile", 0, req, "PROFILE"), kept("propagate", 0, opt, ""),
		kept("resv-ports", 0, opt, ""),
		kept("stepmgr", 0, no, ""),
		kept("wait-all-nodes", 0, req, "WAIT_ALL_NODES"), kept("wckey", 0, req, "WCKEY"), kept("cluster-constraint", 0, req, ""),
	}
}

func refusedOptions() []entry {
	const no, req = getopt.NoArg, getopt.RequiredArg
	core := refused("core-spec", req, "CORE_SPEC", "no cores can be set aside for the system")
	core.Short = 'S'
	return []entry{
		core,
		refused("thread-spec", req, "THREAD_SPEC", "no threads can be set aside for the system"),
		refused("bb", req, "", "there are no burst buffers"), refused("bbf", req, "", "there are no burst buffers"),
		refused("container", req, "CONTAINER", "containers are not available to batch jobs"),
		refused("container-id", req, "CONTAINER_ID", "containers are not available to batch jobs"),
		refused("gpus-per-socket", req, "", "use --gpus-per-node"),
		refused("gid", req, "", "a job runs under its user's own groups"),
		refused("het-group", req, "", "it belongs to steps; components are set apart by a colon"),
		refused("pack-group", req, "", "it belongs to steps; components are set apart by a colon"),
		refused("reboot", no, "", "nodes are not rebooted for jobs"),
	}
}

// Manual describes the command.
func Manual() *getopt.Manual {
	t := table()
	opts := make([]getopt.Option, len(t))
	for i := range t {
		opts[i] = t[i].Option
	}
	return &getopt.Manual{
		Name: "gsub", Slurm: "sbatch", Summary: "submit a batch script",
		Synopsis: []string{"[OPTIONS] [: OPTIONS]... SCRIPT [ARGUMENT...]", "[OPTIONS] --wrap=COMMAND", "[OPTIONS] < SCRIPT"},
		Description: []string{
			"Hands a script to the controllers and prints the new job's id. When that line is printed the job is safe: it is on the disks of a majority of the controllers, script and environment included.",
			"Options are also read from the script: lines that begin with #GSUB or #SBATCH, in front of the first command. The command line wins over SBATCH_ variables, and these over the script, where our own lines win over those of other systems; of two equal ones the later wins. The same holds for the several ways to ask for GPUs.",
			"Options of a further component follow a colon of its own, or a line #SBATCH hetjob: all components start together, each with what it asks for, and the script runs on the first node of the first. A component takes over what was said before it, but not what it asks for (nodes, tasks, CPUs, memory per CPU, GPUs, features, partition).",
			"With --test-only nothing is submitted: the controller says when and where the job would start, what it lacks now, and what would let it start earlier.",
			"The script is found as a path when it holds a slash, else in the current folder, else in PATH. It must begin with #! and is kept as it is now.",
		},
		Options: opts,
		Sections: []getopt.Section{
			{Title: "DIRECTIVES", Items: []getopt.Item{
				{Text: "The word stands at the start of the line. What follows is split at blanks; quotes keep blanks, a backslash the next character, and # begins a comment. Nothing is expanded. Lines after the first command are not read; gsub says so."},
				{Text: "#PBS lines are read too: -A -J -M -N -e -h -l -m -o -q -r -t, with nodes, ppn, ncpus, mem, ngpus, select and walltime; other options of theirs are passed over."},
				{Text: "#BSUB lines too: -J with an array, -n -W -o -oo -e -eo -i -q -P -cwd -u -gpu num=N -x -H -r -rn -K -N -B; gsub says which others it passed over. #SLURM followed by an option is read like #SBATCH, with a reminder."},
				{Text: "Texts are UTF-8. A script may hold any bytes but NUL."},
			}},
			{Title: "ENVIRONMENT", Items: []getopt.Item{{Text: "Each of these stands for the option beside it; for options without a value: empty, yes, or a number other than 0. " + envList(t)}}},
		},
		Example: "gsub -J train -t 2:00:00 --gres=gpu:1 --mem=16G train.sh",
		Exit: []string{
			"0 when the job was submitted; 1 when it was refused; 255 when an option or directive is wrong.",
			"With --wait, the exit code of the job, the highest one of an array, 1 when a signal ended it.",
		},
		SeeAlso: []string{"gqueue(1)", "gcancel(1)", "gctl(1)", "grid.conf(5)"},
	}
}

func envList(t []entry) string {
	s := ""
	for _, e := range t {
		if e.env != "" {
			if s != "" {
				s += ", "
			}
			s += "SBATCH_" + e.env + " --" + e.Long
		}
	}
	return s + ", " + switchWait + " the time of --switches."
}
