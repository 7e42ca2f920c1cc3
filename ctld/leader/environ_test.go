package leader

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/internal/cred"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// launchOf submits a job with the user's environment and gives its launch. Both nodes are there.
func (b *bench) launchOf(spec *job.Spec, env ...string) (*nodepb.Launch, map[string]string) {
	b.Helper()
	l, _ := b.lead("c1")
	n1 := b.connect(l, "n1")
	b.connect(l, "n2")
	if len(env) > 0 {
		spec.EnvHash = b.blob([]byte(strings.Join(env, "\x00") + "\x00"))
	}
	b.submit(spec)
	list := n1.launches()
	if len(list) != 1 {
		b.Fatalf("%d launches", len(list))
	}
	if !slices.IsSortedFunc(list[0].Env, func(a, c []byte) int { return strings.Compare(string(a), string(c)) }) {
		b.Error("the environment is not sorted")
	}
	vars := map[string]string{}
	for _, e := range list[0].Env {
		name, value, _ := strings.Cut(string(e), "=")
		vars[name] = value
	}
	return list[0], vars
}

func TestEnvironment(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spec  job.Spec
		env   []string
		want  map[string]string
		unset string
	}{
		{
			name: "plain",
			env:  []string{"PATH=/bin", "CUDA_VISIBLE_DEVICES=7", "GPU_DEVICE_ORDINAL=7", "SLURM_NTASKS=9", "SLURM_ARRAY_TASK_ID=4", "SLURM_SUBMIT_DIR=/data", "EMPTY=", "A=b=c"},
			want: map[string]string{"PATH": "/bin", "SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_JOB_NAME": "sbatch", "SLURM_JOB_PARTITION": "main",
				"SLURM_JOB_NODELIST": "n1", "SLURM_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1",
				"SLURM_JOB_CPUS_PER_NODE": "1", "SLURM_TASKS_PER_NODE": "1", "SLURM_CPUS_ON_NODE": "1",
				"SLURM_SUBMIT_DIR": "/data", "SLURM_CLUSTER_NAME": "tg", "SLURM_CONF": "/etc/tensorgrid/grid.conf",
				"SLURM_GTIDS": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_PRIO_PROCESS": "0",
				"SLURM_JOB_UID": "1000", "SLURM_JOB_GID": "1000", "SLURM_JOB_USER": "ada", "ENVIRONMENT": "BATCH",
				"SLURMD_NODENAME": "n1", "HOSTNAME": "n1", "TMPDIR": "/tmp", "EMPTY": "", "A": "b=c", "SLURM_JOB_START_TIME": "946684800"},
			unset: "CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL SLURM_NTASKS SLURM_NPROCS SLURM_ARRAY_TASK_ID SLURM_RESTART_COUNT SLURM_CPUS_PER_TASK SLURM_MEM_PER_NODE SLURM_JOB_GPUS SLURM_JOB_END_TIME SLURM_EXPORT_ENV",
		},
		{
			name: "two nodes, three tasks",
			spec: job.Spec{MinNodes: 2, MaxNodes: 2, NTasks: 3, CPUsPerTask: 1, MemPerNode: 100 << 20},
			want: map[string]string{"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "2,1", "SLURM_TASKS_PER_NODE": "2,1",
				"SLURM_NTASKS": "3", "SLURM_NPROCS": "3", "SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_NODE": "100", "SLURM_CPUS_PER_TASK": "1"},
			unset: "SLURM_NTASKS_PER_NODE SLURM_MEM_PER_CPU",
		},
		{
			name: "tasks per node",
			spec: job.Spec{MinNodes: 2, MaxNodes: 2, NTasksPerNode: 2, MemPerCPU: 64 << 20},
			want: map[string]string{"SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x2)",
				"SLURM_JOB_CPUS_PER_NODE": "2(x2)", "SLURM_MEM_PER_CPU": "64"},
			unset: "SLURM_MEM_PER_NODE",
		},
		{
			name: "gpus, a limit, a name",
			spec: job.Spec{Name: "train", Gres: "gpu:2", TimeLimit: 60000, Account: "phys", QOS: "high", Export: "ALL"},
			env:  []string{"CUDA_VISIBLE_DEVICES=7", "TMPDIR=/scratch"},
			want: map[string]string{"CUDA_VISIBLE_DEVICES": "0,1", "GPU_DEVICE_ORDINAL": "0,1", "SLURM_JOB_GPUS": "0,1", "SLURM_GPUS_ON_NODE": "2",
				"SLURM_JOB_NAME": "train", "SLURM_JOB_END_TIME": "946684860", "TMPDIR": "/scratch", "SLURM_JOB_ACCOUNT": "phys",
				"SLURM_JOB_QOS": "high", "SLURM_EXPORT_ENV": "ALL"},
		},
		{
			name: "array",
			spec: job.Spec{Array: "3-9:2"},
			want: map[string]string{"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4",
				"SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_MAX": "9", "SLURM_ARRAY_TASK_STEP": "2"},
		},
		{
			name: "a login's environment",
			spec: job.Spec{GetUserEnv: true, Export: "NONE", Home: "/home/ada", Shell: "/bin/zsh"},
			env:  []string{"SLURM_CPU_BIND=none"},
			want: map[string]string{"HOME": "/home/ada", "USER": "ada", "LOGNAME": "ada", "SHELL": "/bin/zsh", "SLURM_EXPORT_ENV": "NONE", "SLURM_CPU_BIND": "none"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBench(t, func(b *bench) {
				if strings.HasPrefix(tt.spec.Array, "3") {
					b.cfg.Nodes = b.cfg.Nodes[:2]
					b.cfg.Nodes[0].CPUs, b.cfg.Nodes[0].RealMemory = 1, 1<<30 // one task a node
				}
				_, vars := b.launchOf(&tt.spec, tt.env...)
				for name, value := range tt.want {
					if got, ok := vars[name]; !ok || got != value {
						t.Errorf("%s is %q (set: %v), want %q", name, got, ok, value)
					}
				}
				for _, name := range strings.Fields(tt.unset) {
					if value, ok := vars[name]; ok {
						t.Errorf("%s is set to %q", name, value)
					}
				}
			})
		})
	}
}

func TestFiles(t *testing.T) {
	for _, tt := range []struct {
		name          string
		spec          job.Spec
		in, out, errs string
	}{
		{"defaults", job.Spec{}, "/dev/null", "/home/ada/slurm-1.out", "/home/ada/slurm-1.out"},
		{"patterns", job.Spec{Name: "x", StdOut: "logs/%x-%3j-%u.out", StdErr: "/tmp/%N.err", StdIn: "in"}, "/home/ada/in", "/home/ada/logs/x-001-ada.out", "/tmp/n1.err"},
		{"array", job.Spec{Array: "7"}, "/dev/null", "/home/ada/slurm-1_7.out", "/home/ada/slurm-1_7.out"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBench(t, func(b *bench) {
				launch, _ := b.launchOf(&tt.spec)
				c, err := cred.UnmarshalLaunch(launch.Credential)
				if err != nil {
					t.Fatal(err)
				}
				if c.StdIn != tt.in || c.StdOut != tt.out || c.StdErr != tt.errs {
					t.Errorf("in %s out %s err %s", c.StdIn, c.StdOut, c.StdErr)
				}
			})
		})
	}
}

func TestRestartCount(t *testing.T) {
	inBench(t, func(b *bench) {
		l, _ := b.lead("c1")
		a := b.connect(l, "n1")
		ids := b.submit(&job.Spec{OpenMode: "append"})
		a.started(a.launches())
		a.cancel()
		synctest.Wait()
		h := hello("n1")
		h.BootId = "boot2"
		a = b.dial(l, "n1", h)
		a.read()
		a.beat()
		var list []*nodepb.Launch
		for range 200 { // the requeue's delay, whatever it is
			if list = a.launches(); len(list) > 0 {
				break
			}
			synctestSleep()
		}
		if len(list) != 1 || list[0].Key.Run != 1 || list[0].Key.JobId != ids[0] {
			t.Fatalf("launches %v", list)
		}
		if !slices.ContainsFunc(list[0].Env, func(e []byte) bool { return string(e) == "SLURM_RESTART_COUNT=1" }) {
			t.Error("no SLURM_RESTART_COUNT")
		}
		if c, _ := cred.UnmarshalLaunch(list[0].Credential); !c.Append || c.Restarts != 1 {
			t.Errorf("credential %+v", c)
		}
	})
}
