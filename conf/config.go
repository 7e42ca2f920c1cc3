// Package conf reads grid.conf (slurm.conf's syntax and key names), fills in defaults, validates,
// and tells what changed on reload. A Config is a value: nothing changes it after Load.
package conf

import "time"

// Config is grid.conf. The doc comments of the fields are the text of grid.conf(5); the tag gives
// key, unit, default, and whether "gctl reconfigure" applies a change (reload) or a daemon must be
// started again (restart).
type Config struct {
	// Names the cluster: letters, digits, '.', '-' and '_', at most 40. Certificates and launch
	// credentials are bound to it.
	ClusterName string `conf:"ClusterName,name,,restart"`
	// The unprivileged account that gnoded runs under.
	AgentUser string `conf:"AgentUser,name,gnoded,restart"`
	// The account that step shepherds (gstepd) run under. It owns their records, nothing else.
	StepUser string `conf:"StepUser,name,gstepd,restart"`
	// The folder with ca.pem, and NAME.pem and NAME.key for each daemon.
	TLSDir string `conf:"TLSDir,path,/etc/tensorgrid/tls,restart"`
	// A node's spool; %n is the node's name.
	SpoolDir string `conf:"SlurmdSpoolDir,path,/var/spool/tensorgrid/%n,restart"`
	// Where agent and launcher of a node have their sockets; %n is the node's name.
	NodeRunDir string `conf:"NodeRunDir,path,/run/tensorgrid/%n,restart"`

	// The first job id that is given. It matters only until the first job.
	FirstJobId uint32 `conf:"FirstJobId,count,1,reload"`
	// The most job records kept in memory, waiting, running and ended. Further submissions are refused.
	MaxJobCount uint32 `conf:"MaxJobCount,count,1000000,reload"`
	// One more than the highest array index. At most 4000001.
	MaxArraySize uint32 `conf:"MaxArraySize,count,1001,reload"`
	// The most waiting and running jobs of one user; 0 sets no bound.
	MaxSubmitPerUser uint32 `conf:"MaxSubmitPerUser,count,0,reload"`
	// How long ended jobs stay in memory.
	MinJobAge time.Duration `conf:"MinJobAge,seconds,86400,reload"`
	// The most ended jobs kept in memory; the oldest leave first.
	MaxEndedJobs uint32 `conf:"MaxEndedJobs,count,1000000,reload"`
	// The time between TERM and KILL when a job is ended.
	KillWait time.Duration `conf:"KillWait,seconds,30,reload"`
	// How long a job may run past its limit before it is ended.
	OverTimeLimit time.Duration `conf:"OverTimeLimit,minutes,0,reload"`
	// Whether batch jobs may be queued again (node failure, scontrol requeue) unless they say otherwise.
	JobRequeue bool `conf:"JobRequeue,bool,1,reload"`
	// How often a job may be queued again by the system before it is held.
	MaxBatchRequeue uint32 `conf:"MaxBatchRequeue,count,5,reload"`
	// How long a job that was queued again waits before it may start.
	RequeueDelay time.Duration `conf:"RequeueDelay,seconds,120,reload"`
	// Opens output files for appending by default.
	JobFileAppend bool `conf:"JobFileAppend,bool,0,reload"`

	// How long an agent may be silent before its node is DOWN. 0 = never: a silent node takes no new
	// jobs, and those on it stay.
	SlurmdTimeout time.Duration `conf:"SlurmdTimeout,seconds,300,reload"`
	// How often agents report to the leader.
	HeartbeatInterval time.Duration `conf:"HeartbeatInterval,seconds,1,reload"`
	// How long an agent may leave a launch unanswered before it is cooled down; after three in a row
	// its node is drained.
	LaunchTimeout time.Duration `conf:"LaunchTimeout,seconds,10,reload"`
	// When a DOWN node that registers again may be used: 0 never by itself, 1 when it was DOWN for
	// not responding, 2 always.
	ReturnToService uint32 `conf:"ReturnToService,count,1,reload"`
	// How long a job that was submitted with --requeue outlives the last word of a leader. It is then
	// ended on its node, and starts elsewhere as soon as that must have happened. At least three times
	// HeartbeatInterval; 0 ends no job by lease. A partition's JobLease goes before it.
	JobLease time.Duration `conf:"JobLease,seconds,600,reload"`
	// A program that the leader runs to cut a silent node off (power, network) before its jobs that may
	// be requeued start elsewhere. It gets the node's name as argument; exit code 0 means that nothing
	// can be alive there.
	FenceProgram string `conf:"FenceProgram,path,,reload"`
	// Ends a FenceProgram that hangs; it is tried again.
	FenceTimeout time.Duration `conf:"FenceTimeout,seconds,60,reload"`
	// A program that runs as root on each node before a job, with a fixed environment. The launcher's
	// own file decides; this line is what people are shown.
	Prolog string `conf:"Prolog,path,,reload"`
	// A program that runs as root on each node after a job. See Prolog.
	Epilog string `conf:"Epilog,path,,reload"`
	// Ends a prolog or epilog that hangs.
	PrologEpilogTimeout time.Duration `conf:"PrologEpilogTimeout,seconds,300,reload"`
	// The cgroup driver of the nodes: auto, hybrid, v2, v1, track (a v2 group without limits) or none.
	CgroupPlugin string `conf:"CgroupPlugin,word:auto|autodetect|hybrid|v2|v1|track|none,auto,restart"`
	// How agents find devices: off, sim (each NodeName line's SimGPU) or nvml.
	AutoDetect string `conf:"AutoDetect,word:off|sim|nvml,off,restart"`
	// Comma list of options for agents. config_overrides: a node has what its line says, whatever the
	// machine has.
	SlurmdParameters []string `conf:"SlurmdParameters,list,,restart"`

	// Raft's heartbeat and election timeout. A failover takes one to two of them.
	HeartbeatTimeout time.Duration `conf:"RaftTimeout,seconds,500ms,restart"`
	// Starts a snapshot after that much log, in MiB.
	SnapshotBytes int64 `conf:"SnapshotSize,mib,256,restart"`
	// How often the replicas compare a hash of their state; one that differs halts. 0 = never.
	StateHashInterval time.Duration `conf:"StateHashInterval,seconds,300,reload"`
	// Free space that must be where the log is, in MiB: a controller with less hands leadership over
	// and stops, before the disk is full.
	StateReserve int64 `conf:"StateReserve,mib,64,restart"`
	// Where controllers write who did what, one JSON object a line; %c is the replica's name. Empty =
	// audit.log in StateDir.
	AuditLog string `conf:"AuditLog,path,,restart"`
	// The CA's key, for controllers that give certificates to joining daemons and renew them. Empty =
	// ca.key in TLSDir if it is there; without it a controller gives none.
	IssuerKey string `conf:"IssuerKey,path,,restart"`
	// How long the certificates live that controllers give, at least 60 s; daemons renew them after two
	// thirds.
	CertLife time.Duration `conf:"CertLife,seconds,2592000,reload"`
	// Login hosts, by certificate name, whose gnoded --login may vouch for users.
	LoginNodes []string `conf:"LoginNodes,list,,reload"`
	// Socket of gnoded --login on a login host.
	LoginSocket string `conf:"LoginSocket,path,/run/tensorgrid/login.sock,restart"`
	// Wallets that stand for local users: 0xADDRESS=user, comma list.
	Wallets []string `conf:"Wallets,list,,reload"`
	// Users who may act on the jobs of others and on nodes.
	Operators []string `conf:"Operators,list,,reload"`
	// Users who may do everything; root is one.
	Admins []string `conf:"Admins,list,,reload"`
	// Hides other people's data. Comma list of jobs, nodes, partitions.
	PrivateData []string `conf:"PrivateData,list,,reload"`
	// How much the daemons log: error, info or debug. Slurm's verbose and debug2 to debug5 are taken too.
	LogLevel string `conf:"SlurmctldDebug,word:quiet|fatal|error|info|verbose|debug|debug2|debug3|debug4|debug5,info,restart"`

	// How waiting jobs are ranked. multifactor: Slurm's weighted sum; while no PriorityWeight is set that is
	// the order of submission. expansion: by (waited + time limit) / time limit, with a bound on starvation.
	// fcfs: in the order of submission. Slurm's priority/multifactor and priority/basic (fcfs) are taken too.
	PriorityType string `conf:"PriorityType,word:multifactor|priority/multifactor|expansion|fcfs|priority/basic,multifactor,reload"`
	// Weight of the time a job has been eligible.
	PriorityWeightAge uint32 `conf:"PriorityWeightAge,count,0,reload"`
	// Weight of the association's own priority.
	PriorityWeightAssoc uint32 `conf:"PriorityWeightAssoc,count,0,reload"`
	// Weight of fair share.
	PriorityWeightFairshare uint32 `conf:"PriorityWeightFairshare,count,0,reload"`
	// Weight of the job's size.
	PriorityWeightJobSize uint32 `conf:"PriorityWeightJobSize,count,0,reload"`
	// Weight of the partition's PriorityJobFactor.
	PriorityWeightPartition uint32 `conf:"PriorityWeightPartition,count,0,reload"`
	// Weight of the QOS's priority.
	PriorityWeightQOS uint32 `conf:"PriorityWeightQOS,count,0,reload"`
	// Weights of what a job asks for: CPU=1000,Mem=2000,GRES/gpu=3000.
	PriorityWeightTRES []string `conf:"PriorityWeightTRES,list,,reload"`
	// Weight of a job's bid (gsub --bid), by how far it is above SchedulerParameters=posted_price=N, in 10^-6
	// token for a billing unit and hour: nothing at that price, all of the weight at 16 times it. At most
	// PriorityWeightAge and PriorityWeightFairshare together, so that these always overtake it.
	PriorityWeightBid uint32 `conf:"PriorityWeightBid,count,0,reload"`
	// The age at which a job's age factor is 1.
	PriorityMaxAge int64 `conf:"PriorityMaxAge,timelimit,7-0,reload"`
	// How long it takes until past usage counts half. 0 = it never fades; see PriorityUsageResetPeriod.
	PriorityDecayHalfLife int64 `conf:"PriorityDecayHalfLife,timelimit,7-0,reload"`
	// How often usage is charged and faded.
	PriorityCalcPeriod int64 `conf:"PriorityCalcPeriod,timelimit,5,reload"`
	// When usage is forgotten, where it does not fade.
	PriorityUsageResetPeriod string `conf:"PriorityUsageResetPeriod,word:NONE|NOW|DAILY|WEEKLY|MONTHLY|QUARTERLY|YEARLY,NONE,reload"`
	// Small jobs, not large ones, have the higher size factor.
	PriorityFavorSmall bool `conf:"PriorityFavorSmall,bool,NO,reload"`
	// Comma list of ACCRUE_ALWAYS, CALCULATE_RUNNING, DEPTH_OBLIVIOUS, NO_FAIR_TREE, INCR_ONLY, MAX_TRES,
	// MAX_TRES_GRES, NO_NORMAL_ALL, NO_NORMAL_ASSOC, NO_NORMAL_PART, NO_NORMAL_QOS, NO_NORMAL_TRES,
	// SMALL_RELATIVE_TO_TIME.
	PriorityFlags []string `conf:"PriorityFlags,list,,reload"`
	// Dampens the classic fair share formula (PriorityFlags=NO_FAIR_TREE).
	FairShareDampeningFactor uint32 `conf:"FairShareDampeningFactor,count,1,reload"`
	// What of accounting is enforced, comma list of associations (a job needs one), limits, qos, safe (a job
	// starts only if it can end within its limits), all. Each includes associations.
	AccountingStorageEnforce []string `conf:"AccountingStorageEnforce,list,,reload"`
	// Who may take resources from running jobs: preempt/none nobody, preempt/partition_prio jobs of a higher
	// partition tier, preempt/qos jobs of a QOS whose Preempt list names the other's.
	PreemptType string `conf:"PreemptType,word:preempt/none|preempt/partition_prio|preempt/qos|none|partition_prio|qos,preempt/none,reload"`
	// What happens to jobs that make room: OFF, CANCEL, REQUEUE or SUSPEND. Partitions and QOS may differ.
	PreemptMode []string `conf:"PreemptMode,list,OFF,reload"`
	// How long a job runs before it may have to make room.
	PreemptExemptTime int64 `conf:"PreemptExemptTime,timelimit,0,reload"`
	// Comma list of youngest_first (of equal cost, the job that started last makes room first),
	// min_exempt_priority=N (jobs of this priority or more make no room), send_user_signal (a job with --signal and
	// GraceTime gets that signal instead of TERM when its grace begins).
	PreemptParameters []string `conf:"PreemptParameters,list,,reload"`
	// Comma list of options for the scheduler: promises=N (waiting jobs of a partition whose start is promised;
	// 32 by default; 0 = open mode, the first one's is reserved and only estimated), backfill=priority|shortest|off (which jobs
	// go ahead), estimates=user|corrected (by what the user's last jobs took; for the order only),
	// starvation=TIME (policy expansion: a job that waited so long goes first), bf_window=MIN, bf_max_job_test=N,
	// max_sched_work=N and partition_sched_work=N (bounds of one round, in nodes looked at; 0 = none),
	// bf_max_job_user=N, sched_max_job_start=N, max_preempting_jobs=N, assoc_limit_stop, kill_invalid_depend.
	SchedulerParameters []string `conf:"SchedulerParameters,list,,reload"`
	// Licenses of the cluster: matlab:10,ansys:4.
	Licenses []string `conf:"Licenses,list,,reload"`
	// Comma list of kill_invalid_depend (a job whose dependency can never be met is cancelled).
	DependencyParameters []string `conf:"DependencyParameters,list,,reload"`
	// How nodes are connected: topology/flat, or topology/tree or topology/block with SwitchName or BlockName
	// lines, here or in topology.conf beside this file.
	TopologyPlugin string `conf:"TopologyPlugin,word:topology/flat|topology/default|topology/none|topology/tree|topology/block|flat|tree|block,topology/flat,reload"`
	// Sizes of aggregated blocks, in nodes: 4,16.
	BlockSizes []string `conf:"BlockSizes,list,,reload"`

	// The replicas, one ControllerName (or SlurmctldHost) line each: 1, 3 or 5; up to 7 while some join.
	Controllers []Controller
	// The compute nodes, NodeName lines with hostlists unfolded, in the file's order.
	Nodes []Node
	// The partitions in the file's order.
	Partitions []Partition
	// Switches and blocks, SwitchName and BlockName lines of this file or topology.conf, in order.
	Switches []Switch

	// Ignored lists keys of a site's slurm.conf that have no meaning here, with where they stand.
	Ignored []Note
	// Warnings lists what is allowed but hardly meant, with where it stands.
	Warnings []Note
	// Source is the file that was read.
	Source string
}

// Controller is one replica: a ControllerName line.
type Controller struct {
	// The replica's name, as in its certificate.
	Name string `conf:"ControllerName,name,,restart"`
	// Host name or address that agents and other replicas reach it at. Default: the name.
	Address string `conf:"Address,string,,restart"`
	// Port for agents and other replicas (mutual TLS).
	Port uint32 `conf:"Port,count,6817,restart"`
	// Port for raft (mutual TLS).
	RaftPort uint32 `conf:"RaftPort,count,6816,restart"`
	// Port for commands from other hosts (TLS, a token or wallet with each call). 0 = closed.
	UserPort uint32 `conf:"UserPort,count,0,restart"`
	// Socket for the commands of local users; %c is the replica's name.
	Socket string `conf:"Socket,path,/run/tensorgrid/%c.sock,restart"`
	// Folder of log and snapshots, mode 0700; %c is the replica's name.
	StateDir string `conf:"StateDir,path,/var/lib/tensorgrid/%c,restart"`
}

// Node is one node: a NodeName line. Memory and disk are bytes here, MiB in the file.
type Node struct {
	// The nodes of this line, a hostlist: gpu[01-16]. DEFAULT sets defaults for the lines below it.
	Name string `conf:"NodeName,hostlist,,reload"`
	// The host names, when they differ. Default: NodeName.
	Hostname string `conf:"NodeHostname,string,,reload"`
	// The addresses. Default: NodeHostname.
	Address string `conf:"NodeAddr,string,,reload"`
	// Kept for a site's file; agents dial controllers, nothing listens here.
	Port uint32 `conf:"Port,count,6818,reload"`
	// Logical processors. Default: Boards x Sockets x CoresPerSocket x ThreadsPerCore.
	CPUs uint32 `conf:"CPUs,count,0,reload"`
	// Boards.
	Boards uint32 `conf:"Boards,count,1,reload"`
	// Sockets, all boards together. Default: CPUs by cores and threads, else 1.
	Sockets uint32 `conf:"Sockets,count,0,reload"`
	// Cores in each socket.
	CoresPerSocket uint32 `conf:"CoresPerSocket,count,1,reload"`
	// Hardware threads in each core.
	ThreadsPerCore uint32 `conf:"ThreadsPerCore,count,1,reload"`
	// Memory that jobs may use, in MiB.
	RealMemory int64 `conf:"RealMemory,mib,1,reload"`
	// Local disk for jobs, in MiB.
	TmpDisk int64 `conf:"TmpDisk,mib,0,reload"`
	// Generic resources: gpu:a100:4,shard:16.
	Gres string `conf:"Gres,string,,reload"`
	// Features that jobs ask for with --constraint.
	Features []string `conf:"Features,list,,reload"`
	// Nodes of lower weight are used first.
	Weight uint32 `conf:"Weight,count,1,reload"`
	// State that the node starts in: UNKNOWN, DOWN, DRAIN or FUTURE.
	State string `conf:"State,word:UNKNOWN|DOWN|DRAIN|FAIL|FAILING|FUTURE|CLOUD|IDLE,UNKNOWN,reload"`
	// Why it starts DOWN or DRAIN.
	Reason string `conf:"Reason,string,,reload"`
	// Simulated GPUs for AutoDetect=sim: dgx-a100, hgx-h100, hgx-h200, hgx-b200, a30x2, consumer-mix, or TYPE:COUNT.
	SimGPU string `conf:"SimGPU,string,,restart"`
	// How users get a uid on the node: identity, pool or userns.
	UserMap string `conf:"UserMap,word:identity|pool|userns,identity,restart"`
}

// Partition is one partition: a PartitionName line. Durations are ms (-1 = none), memory bytes.
type Partition struct {
	// The partition's name. DEFAULT sets defaults for the lines below it.
	Name string `conf:"PartitionName,name,,reload"`
	// Jobs that name no partition go here.
	Default bool `conf:"Default,bool,NO,reload"`
	// The nodes, a hostlist, or ALL.
	Nodes []string `conf:"Nodes,nodes,,reload"`
	// UP, DOWN (queues, starts nothing), DRAIN (no new jobs) or INACTIVE (neither).
	State string `conf:"State,word:UP|DOWN|DRAIN|INACTIVE,UP,reload"`
	// The longest time limit.
	MaxTime int64 `conf:"MaxTime,timelimit,UNLIMITED,reload"`
	// The time limit of jobs that ask for none. Default: MaxTime.
	DefaultTime int64 `conf:"DefaultTime,timelimit,,reload"`
	// The fewest nodes of a job.
	MinNodes uint32 `conf:"MinNodes,count,0,reload"`
	// The most nodes of a job.
	MaxNodes uint32 `conf:"MaxNodes,count,UNLIMITED,reload"`
	// Jobs of a higher tier go first, whatever their priority.
	PriorityTier uint32 `conf:"PriorityTier,count,1,reload"`
	// The partition's part of a job's priority.
	PriorityJobFactor uint32 `conf:"PriorityJobFactor,count,1,reload"`
	// Memory on each node for jobs that ask for none, in MiB.
	DefMemPerNode int64 `conf:"DefMemPerNode,mib,0,reload"`
	// Memory for each CPU for jobs that ask for none, in MiB.
	DefMemPerCPU int64 `conf:"DefMemPerCPU,mib,0,reload"`
	// The most memory on each node, in MiB.
	MaxMemPerNode int64 `conf:"MaxMemPerNode,mib,0,reload"`
	// The most memory for each CPU, in MiB.
	MaxMemPerCPU int64 `conf:"MaxMemPerCPU,mib,0,reload"`
	// Unix groups that may use it. Default: all.
	AllowGroups []string `conf:"AllowGroups,list,,reload"`
	// Accounts that may use it. Default: all.
	AllowAccounts []string `conf:"AllowAccounts,list,,reload"`
	// Accounts that may not.
	DenyAccounts []string `conf:"DenyAccounts,list,,reload"`
	// QOS that may use it. Default: all.
	AllowQOS []string `conf:"AllowQos,list,,reload"`
	// QOS that may not.
	DenyQOS []string `conf:"DenyQos,list,,reload"`
	// The QOS whose limits hold for every job here, before those of the job's own QOS.
	QOS string `conf:"QOS,string,,reload"`
	// NO, or EXCLUSIVE: each job gets whole nodes. YES and FORCE:1 are taken as NO: no CPU is given twice.
	OverSubscribe string `conf:"OverSubscribe,word:NO|EXCLUSIVE|YES|YES:1|FORCE:1,NO,reload"`
	// Only jobs of one user at a time on each node.
	ExclusiveUser bool `conf:"ExclusiveUser,bool,NO,reload"`
	// The nodes with the fewest CPUs in use come first.
	LLN bool `conf:"LLN,bool,NO,reload"`
	// The most CPUs of each node that jobs here may have together.
	MaxCPUsPerNode uint32 `conf:"MaxCPUsPerNode,count,UNLIMITED,reload"`
	// Jobs need a reservation.
	ReqResv bool `conf:"ReqResv,bool,NO,reload"`
	// What happens to jobs here that make room: OFF, CANCEL, REQUEUE or SUSPEND. Default: the cluster's PreemptMode.
	PreemptMode []string `conf:"PreemptMode,list,,reload"`
	// How long jobs here that make room have to end by themselves, after CONT and TERM.
	GraceTime time.Duration `conf:"GraceTime,seconds,0,reload"`
	// What usage is counted in: CPU=1.0,Mem=0.25G,GRES/gpu=2.0. Default: CPUs.
	TRESBillingWeights []string `conf:"TRESBillingWeights,list,,reload"`
	// How long a job here that may be requeued, whether it asked for that or not, outlives the last word
	// of a leader. 0 = no job here is ended by lease. Default: the rule of the cluster's JobLease.
	JobLease Lease `conf:"JobLease,lease,,reload"`
	// Hides the partition from listings without --all.
	Hidden bool `conf:"Hidden,bool,NO,reload"`
	// Only root may submit.
	RootOnly bool `conf:"RootOnly,bool,NO,reload"`
	// Whether nodes share the users' files with the submit hosts. With no, work folder and output
	// live in the node's spool and are read with gctl job output.
	SharedFS bool `conf:"SharedFS,bool,YES,reload"`
	// Root may not submit.
	DisableRootJobs bool `conf:"DisableRootJobs,bool,NO,reload"`
}

// Switch is a SwitchName or BlockName line. Lists are hostlists.
type Switch struct {
	// The switch's name.
	Name string `conf:"SwitchName,hostlist,,reload"`
	// The switches below it.
	Switches string `conf:"Switches,string,,reload"`
	// The nodes at it.
	Nodes string `conf:"Nodes,string,,reload"`
	// Kept for a site's file.
	LinkSpeed string `conf:"LinkSpeed,string,,reload"`
	// It is a BlockName line.
	Block bool
}

// Lease is JobLease of a partition line in ms. Its zero value says that the line does not set it.
type Lease int64

// NoLease is JobLease=0: no job of the partition is ended by lease.
const NoLease Lease = -1

// Note is something to tell about one place of the file.
type Note struct {
	File string
	Line int
	Text string
}
