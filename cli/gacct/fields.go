package gacct

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/render"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// record is one line: a job, or one of its steps.
type record struct {
	*ctldpb.Job
	step  *ctldpb.Step
	clock render.Clock
	unit  byte // of --units; 0 = K
}

// field is one thing that can be shown; width is negative when it stands to the left.
type field struct {
	name  string
	width int
	value func(*record) string
}

func (r *record) id() string {
	s := render.JobID(r.Job, 0)
	if r.step != nil {
		s += "." + r.step.StepId
	}
	return s
}

func (r *record) rawID() string {
	s := fmt.Sprint(r.JobId)
	if r.step != nil {
		s += "." + r.step.StepId
	}
	return s
}

func (r *record) name() string {
	if r.step != nil {
		return render.Or(r.step.Name, r.step.StepId)
	}
	return r.Spec.GetName()
}

// state is the base state; who cancelled a job is told with it.
func (r *record) state() string {
	if r.step != nil {
		return r.step.State
	}
	if r.State == "CANCELLED" && r.HasCancelledBy {
		return fmt.Sprintf("CANCELLED by %d", r.CancelledBy)
	}
	for _, f := range r.Flags {
		if f == "REQUEUED" && r.State != "PENDING" {
			return "REQUEUED"
		}
	}
	return r.State
}

func (r *record) exit() *ctldpb.ExitStatus {
	if r.step != nil {
		return r.step.Exit
	}
	return r.Exit
}

// span is when the line's work ran; end is 0 while it does.
func (r *record) span() (start, end int64) {
	start, end = r.StartMs, r.EndMs
	if !render.BaseState(r.Job).Ended() {
		end = 0
	}
	if render.BaseState(r.Job) == job.Pending {
		start = 0
	}
	if r.step != nil {
		start, end = r.step.StartMs, r.step.EndMs
		if r.step.State == "RUNNING" {
			end = 0
		}
	}
	return start, end
}

func (r *record) elapsed() int64 {
	start, end := r.span()
	if start == 0 {
		return 0
	}
	if end == 0 {
		end = r.clock.Now.UnixMilli()
	}
	return max(0, end-start-r.SuspendedMs)
}

// usage of a job is that of its steps.
func (r *record) usage() *ctldpb.Usage {
	if r.step != nil {
		return r.step.Usage
	}
	return r.Usage
}

// cpus are what the run holds or held; a job that never ran has none.
func (r *record) cpus() uint32 {
	if r.Job.NodeList == "" {
		return 0
	}
	return r.NumCpus
}

func (r *record) nodeList() string {
	if r.step != nil {
		return render.Or(r.step.NodeList, r.NodeList)
	}
	return render.Or(r.NodeList, "None assigned")
}

// cpuTime prints microseconds as sacct prints CPU time: MM:SS.mmm, or [D-]HH:MM:SS from an hour on.
func cpuTime(us int64) string {
	if us < 3600*1e6 {
		return fmt.Sprintf("%02d:%02d.%03d", us/60e6, us/1e6%60, us/1000%1000)
	}
	return job.FormatDuration(us / 1000)
}

// size prints bytes in K, or in the unit asked for.
func (r *record) size(bytes int64) string {
	if r.unit == 0 {
		return strconv.FormatInt(bytes>>10, 10) + "K"
	}
	const units = "KMGTP"
	v := float64(bytes) / 1024
	for i := 0; units[i] != r.unit; i++ {
		v /= 1024
	}
	return strconv.FormatFloat(v, 'f', decimals(v), 64) + string(r.unit)
}

func decimals(v float64) int {
	if v == float64(int64(v)) {
		return 0
	}
	return 2
}

func (r *record) reqMem() string {
	b := r.MemTotal
	if b == 0 {
		b = max(0, r.Spec.GetMemPerNode()) * int64(render.Nodes(r.Job))
		if per := r.Spec.GetMemPerCpu(); per > 0 {
			b = per * int64(render.CPUs(r.Job))
		}
	}
	if r.unit != 0 {
		return r.size(b)
	}
	return job.FormatMem(b)
}

func jobOnly(f func(*record) string) func(*record) string {
	return func(r *record) string {
		if r.step != nil {
			return ""
		}
		return f(r)
	}
}

func stepOnly(f func(*record) string) func(*record) string {
	return func(r *record) string {
		if r.step == nil {
			return ""
		}
		return f(r)
	}
}

func empty(*record) string { return "" }

func num[T uint32 | int64 | int32](f func(*record) T) func(*record) string {
	return func(r *record) string { return fmt.Sprint(f(r)) }
}

func limit(r *record) string {
	switch {
	case r.TimeLimitMs < 0:
		return "UNLIMITED"
	case r.TimeLimitMs == 0:
		return "Partition_Limit"
	}
	return job.FormatDuration(r.TimeLimitMs)
}

func (r *record) planned() int64 {
	end := r.StartMs
	if end == 0 || render.BaseState(r.Job) == job.Pending {
		end = r.clock.Now.UnixMilli()
		if render.BaseState(r.Job).Ended() {
			end = r.EndMs
		}
	}
	return max(0, end-max(r.EligibleMs, r.SubmitMs))
}

// allocTRES are what the job holds or held; nothing while it waits.
func (r *record) allocTRES() string {
	if r.NodeList == "" {
		return ""
	}
	if r.step != nil {
		var parts []string
		for p := range strings.SplitSeq(r.Tres, ",") {
			if !strings.HasPrefix(p, "billing=") {
				parts = append(parts, p)
			}
		}
		return strings.Join(parts, ",")
	}
	return r.Tres
}

var fields = []field{
	{"Account", 10, func(r *record) string { return render.Account(r.Job) }},
	{"AdminComment", 15, jobOnly(func(r *record) string { return r.AdminComment })},
	{"AllocCPUS", 10, num((*record).cpus)},
	{"AllocNodes", 10, num(func(r *record) uint32 { return r.NumNodes })},
	{"AllocTRES", 10, (*record).allocTRES},
	{"AssocID", 7, jobOnly(func(*record) string { return "0" })},
	{"AveCPU", 10, stepOnly(func(r *record) string {
		return job.FormatDuration((r.usage().GetUserUs() + r.usage().GetSysUs()) / 1000)
	})},
	{"AveCPUFreq", 10, stepOnly(func(*record) string { return "0" })},
	{"AveDiskRead", 14, empty}, {"AveDiskWrite", 14, empty}, {"AvePages", 10, empty},
	{"AveRSS", 10, stepOnly(func(r *record) string { return r.size(r.usage().GetMaxRss()) })},
	{"AveVMSize", 10, empty}, {"BlockID", 16, empty},
	{"Cluster", 10, func(r *record) string { return "" }},
	{"Comment", 14, jobOnly(func(r *record) string { return r.Spec.GetComment() })},
	{"Constraints", 19, jobOnly(func(r *record) string { return r.Spec.GetConstraint() })},
	{"ConsumedEnergy", 14, empty}, {"ConsumedEnergyRaw", 17, empty}, {"Container", 19, empty},
	{"CPUTime", 10, func(r *record) string { return job.FormatDuration(r.elapsed() * int64(r.cpus())) }},
	{"CPUTimeRAW", 10, func(r *record) string { return fmt.Sprint(r.elapsed() / 1000 * int64(r.cpus())) }},
	{"DBIndex", -21, jobOnly(num(func(r *record) uint32 { return r.JobId }))},
	{"DerivedExitCode", 15, jobOnly(func(r *record) string { return render.Exit(r.DerivedExit) })},
	{"Elapsed", 10, func(r *record) string { return job.FormatDuration(r.elapsed()) }},
	{"ElapsedRaw", 10, func(r *record) string { return fmt.Sprint(r.elapsed() / 1000) }},
	{"Eligible", 19, func(r *record) string { return r.clock.Time(r.EligibleMs, "Unknown") }},
	{"End", 19, func(r *record) string { _, end := r.span(); return r.clock.Time(end, "Unknown") }},
	{"ExitCode", 8, func(r *record) string { return render.Exit(r.exit()) }},
	{"Extra", 14, jobOnly(func(r *record) string { return render.Rare(r.Job, "extra") })},
	{"FailedNode", 8, jobOnly(func(r *record) string { return r.FailedNode })},
	{"Flags", 19, empty},
	{"GID", 6, jobOnly(num(func(r *record) uint32 { return r.Gid }))},
	{"Group", 9, jobOnly(func(r *record) string { return r.Group })},
	{"JobID", -12, (*record).id}, {"JobIDRaw", -12, (*record).rawID}, {"JobName", 10, (*record).name},
	{"Layout", 9, empty},
	{"Licenses", 10, jobOnly(func(r *record) string { return render.Rare(r.Job, "licenses") })},
	{"MaxDiskRead", 12, empty}, {"MaxDiskReadNode", 15, empty}, {"MaxDiskReadTask", 15, empty},
	{"MaxDiskWrite", 12, empty}, {"MaxDiskWriteNode", 16, empty}, {"MaxDiskWriteTask", 16, empty},
	{"MaxPages", 8, empty}, {"MaxPagesNode", 12, empty}, {"MaxPagesTask", 14, empty},
	{"MaxRSS", 10, stepOnly(func(r *record) string { return r.size(r.usage().GetMaxRss()) })},
	{"MaxRSSNode", 10, stepOnly(func(r *record) string { return r.usage().GetMaxRssNode() })},
	{"MaxRSSTask", 10, stepOnly(func(*record) string { return "0" })},
	{"MaxVMSize", 10, empty}, {"MaxVMSizeNode", 14, empty}, {"MaxVMSizeTask", 14, empty}, {"McsLabel", 12, empty},
	{"MinCPU", 10, empty}, {"MinCPUNode", 10, empty}, {"MinCPUTask", 10, empty},
	{"NCPUS", 10, num((*record).cpus)},
	{"NNodes", 8, num(func(r *record) uint32 { return render.Nodes(r.Job) })},
	{"NodeList", 15, (*record).nodeList},
	{"NTasks", 8, stepOnly(func(r *record) string { return fmt.Sprint(r.step.Tasks) })},
	{"Partition", 10, jobOnly(func(r *record) string { return r.Partition })},
	{"Planned", 10, jobOnly(func(r *record) string { return job.FormatDuration(r.planned()) })},
	{"PlannedCPU", 10, jobOnly(func(r *record) string { return job.FormatDuration(r.planned() * int64(render.CPUs(r.Job))) })},
	{"PlannedCPURAW", 13, jobOnly(func(r *record) string { return fmt.Sprint(r.planned() / 1000 * int64(render.CPUs(r.Job))) })},
	{"Priority", 10, jobOnly(num(func(r *record) int64 { return r.Job.Priority }))},
	{"QOS", 10, jobOnly(func(r *record) string { return render.QOS(r.Job) })},
	{"QOSRAW", 6, jobOnly(func(*record) string { return "1" })},
	{"Reason", 22, jobOnly(func(r *record) string { return render.Or(r.Job.Reason, "None") })},
	{"ReqCPUFreq", 10, empty}, {"ReqCPUFreqGov", 13, empty}, {"ReqCPUFreqMax", 13, empty}, {"ReqCPUFreqMin", 13, empty},
	{"ReqCPUS", 8, num(func(r *record) uint32 { return render.CPUs(r.Job) })},
	{"ReqMem", 10, jobOnly((*record).reqMem)},
	{"ReqNodes", 8, num(func(r *record) uint32 { return render.Nodes(r.Job) })},
	{"ReqTRES", 10, jobOnly(func(r *record) string { return r.Tres })},
	{"Reservation", 20, empty}, {"ReservationId", 17, empty},
	{"Reserved", 10, jobOnly(func(r *record) string { return job.FormatDuration(r.planned()) })},
	{"Restarts", 8, jobOnly(num(func(r *record) uint32 { return r.Job.Restarts }))},
	{"Start", 19, func(r *record) string { start, _ := r.span(); return r.clock.Time(start, "Unknown") }},
	{"State", 10, (*record).state},
	{"StdErr", 20, jobOnly(func(r *record) string { return render.Or(r.StdErr, r.Spec.GetStdErr()) })},
	{"StdIn", 20, jobOnly(func(r *record) string { return render.Or(r.StdIn, "/dev/null") })},
	{"StdOut", 20, jobOnly(func(r *record) string { return render.Or(r.StdOut, r.Spec.GetStdOut()) })},
	{"Submit", 19, func(r *record) string { return r.clock.Time(r.SubmitMs, "Unknown") }},
	{"SubmitLine", 20, jobOnly(func(r *record) string { return r.Spec.GetSubmitLine() })},
	{"Suspended", 10, func(r *record) string { return job.FormatDuration(r.SuspendedMs) }},
	{"SystemComment", 15, empty},
	{"SystemCPU", 10, func(r *record) string { return cpuTime(r.usage().GetSysUs()) }},
	{"Timelimit", 10, jobOnly(limit)},
	{"TimelimitRaw", 10, jobOnly(func(r *record) string {
		if r.TimeLimitMs < 0 {
			return "UNLIMITED"
		}
		return fmt.Sprint(r.TimeLimitMs / 60000)
	})},
	{"TotalCPU", 10, func(r *record) string { return cpuTime(r.usage().GetUserUs() + r.usage().GetSysUs()) }},
	{"TRESUsageInAve", 14, empty}, {"TRESUsageInMax", 14, empty}, {"TRESUsageInMaxNode", 18, empty}, {"TRESUsageInMaxTask", 18, empty},
	{"TRESUsageInMin", 14, empty}, {"TRESUsageInMinNode", 18, empty}, {"TRESUsageInMinTask", 18, empty}, {"TRESUsageInTot", 14, empty},
	{"TRESUsageOutAve", 15, empty}, {"TRESUsageOutMax", 15, empty}, {"TRESUsageOutMaxNode", 19, empty}, {"TRESUsageOutMaxTask", 19, empty},
	{"TRESUsageOutMin", 15, empty}, {"TRESUsageOutMinNode", 19, empty}, {"TRESUsageOutMinTask", 19, empty}, {"TRESUsageOutTot", 15, empty},
	{"UID", 6, jobOnly(num(func(r *record) uint32 { return r.Job.Uid }))},
	{"User", 9, jobOnly(func(r *record) string { return render.Or(r.Job.User, fmt.Sprint(r.Uid)) })},
	{"UserCPU", 10, func(r *record) string { return cpuTime(r.usage().GetUserUs()) }},
	{"WCKey", 10, jobOnly(func(r *record) string { return render.Rare(r.Job, "wckey") })},
	{"WCKeyID", 8, jobOnly(func(*record) string { return "0" })},
	{"WorkDir", 20, jobOnly(func(r *record) string { return r.Spec.GetWorkDir() })},
}

// column is a field with the width it is shown in.
type column struct {
	*field
	width int
}

const (
	defaultFields = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
	briefFields   = "JobID,State,ExitCode"
	maxWidth      = 65535
)

// parseFields reads names in any case, each with an optional %width.
func parseFields(s string) ([]column, error) {
	var cols []column
	for word := range strings.SplitSeq(s, ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		name, width, has := strings.Cut(word, "%")
		f := find(name)
		if f == nil {
			return nil, fmt.Errorf("Invalid field requested: %q", name)
		}
		c := column{f, f.width}
		if has {
			n, err := strconv.Atoi(width)
			if err != nil || n == 0 || n > maxWidth || n < -maxWidth {
				return nil, fmt.Errorf("Invalid field width requested: %q", word)
			}
			c.width = n
		}
		cols = append(cols, c)
		if len(cols) > len(fields)*4 {
			return nil, fmt.Errorf("more than %d fields", len(fields)*4)
		}
	}
	return cols, nil
}

// find takes an exact name, else the first that name begins, as sacct does.
func find(name string) *field {
	for i := range fields {
		if strings.EqualFold(fields[i].name, name) {
			return &fields[i]
		}
	}
	if name == "" {
		return nil
	}
	for i := range fields {
		if len(name) < len(fields[i].name) && strings.EqualFold(fields[i].name[:len(name)], name) {
			return &fields[i]
		}
	}
	return nil
}
