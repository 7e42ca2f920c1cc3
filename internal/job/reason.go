package job

// Reason is why a job waits or how it ended, in Slurm's words.
type Reason string

// The reasons that TensorGrid gives.
const (
	ReasonNone               Reason = "None"
	ReasonPriority           Reason = "Priority"
	ReasonResources          Reason = "Resources"
	ReasonDependency         Reason = "Dependency"
	ReasonDependencyNever    Reason = "DependencyNeverSatisfied"
	ReasonBeginTime          Reason = "BeginTime"
	ReasonHeldUser           Reason = "JobHeldUser"
	ReasonHeldAdmin          Reason = "JobHeldAdmin"
	ReasonArrayLimit         Reason = "JobArrayTaskLimit"
	ReasonPartitionDown      Reason = "PartitionDown"
	ReasonPartitionInactive  Reason = "PartitionInactive"
	ReasonPartitionNodeLimit Reason = "PartitionNodeLimit"
	ReasonPartitionTimeLimit Reason = "PartitionTimeLimit"
	ReasonPartitionConfig    Reason = "PartitionConfig"
	ReasonReqNodeNotAvail    Reason = "ReqNodeNotAvail"
	ReasonNodesDown          Reason = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
	ReasonBadConstraints     Reason = "BadConstraints"
	ReasonProlog             Reason = "Prolog"
	ReasonMaxRequeue         Reason = "JobHoldMaxRequeue"
	ReasonCleaning           Reason = "Cleaning"
	ReasonNonZeroExit        Reason = "NonZeroExitCode"
	ReasonLaunchFailure      Reason = "JobLaunchFailure"
	ReasonTimeLimit          Reason = "TimeLimit"
	ReasonOutOfMemory        Reason = "OutOfMemory"
	ReasonNodeDown           Reason = "NodeDown"
	ReasonDeadLine           Reason = "DeadLine"
	ReasonSystemFailure      Reason = "SystemFailure"
	ReasonOutputFile         Reason = "OutputFile" // standard output or error could not be opened
	ReasonFencing            Reason = "WaitingForFence"
	ReasonReservation        Reason = "Reservation"
	ReasonReservationDeleted Reason = "ReservationDeleted"
	ReasonLicenses           Reason = "Licenses"
	ReasonInvalidAccount     Reason = "InvalidAccount"
	ReasonInvalidQOS         Reason = "InvalidQOS"
	ReasonQOSNotAllowed      Reason = "QOSNotAllowed"
	ReasonAccountNotAllowed  Reason = "AccountNotAllowed"
	ReasonSchedDefer         Reason = "SchedDefer" // the round's work bound was reached before it was looked at
)

// Reasons of limits are made of parts, as Slurm's: LimitReason("QOS", "GrpCpuLimit") is QOSGrpCpuLimit.
func LimitReason(of, limit string) Reason { return Reason(of + limit) }
