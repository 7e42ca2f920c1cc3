package accounting

import "strings"

// Unset is a limit that is not set; of shares, that the entity takes part in its parent's share.
const (
	Unset       int64 = -1
	ParentShare int64 = -1
)

// Limits are what one association or QOS sets. Numbers are Unset (-1) where nothing is set; vectors hold only what is
// set. Times are ms. TRES minutes are in TRES times minutes.
type Limits struct {
	GrpTRES, GrpTRESMins, GrpTRESRunMins             TRES
	MaxTRESPerJob, MaxTRESPerNode, MaxTRESMinsPerJob TRES
	MaxTRESPerUser, MaxTRESPerAccount                TRES // QOS only
	MaxTRESRunMinsPerUser, MaxTRESRunMinsPerAccount  TRES // QOS only
	MinTRESPerJob                                    TRES // QOS only
	GrpJobs, GrpSubmitJobs, GrpJobsAccrue, GrpWall   int64
	MaxJobs, MaxSubmitJobs, MaxJobsAccrue            int64 // association: of itself; QOS: of each user
	MaxJobsPerAccount, MaxSubmitJobsPerAccount       int64 // QOS only
	MaxJobsAccruePerAccount                          int64 // QOS only
	MaxWallDurationPerJob                            int64
	MinPrioThreshold                                 int64
}

// NoLimits is Limits with nothing set.
func NoLimits() Limits {
	return Limits{
		GrpJobs: Unset, GrpSubmitJobs: Unset, GrpJobsAccrue: Unset, GrpWall: Unset,
		MaxJobs: Unset, MaxSubmitJobs: Unset, MaxJobsAccrue: Unset,
		MaxJobsPerAccount: Unset, MaxSubmitJobsPerAccount: Unset, MaxJobsAccruePerAccount: Unset,
		MaxWallDurationPerJob: Unset, MinPrioThreshold: Unset,
	}
}

// limitKind is how the value of a limit is written.
type limitKind uint8

const (
	limitTRES    limitKind = iota // cpu=4,mem=8G
	limitCount                    // 12
	limitMinutes                  // a duration; kept in ms
)

// Which things can have a limit.
const (
	onAssociation = 1 << iota
	onQOS
)

// limitField is one limit: the name under which it is kept, those under which it is set, and where it lies. The table
// below decides all of parsing, records and rows.
type limitField struct {
	name   string   // Slurm's full name
	key    string   // in lower case: of settings and rows
	others []string // further names, lower case
	kind   limitKind
	on     int
	tres   func(*Limits) *TRES
	number func(*Limits) *int64
}

func tresLimit(name string, on int, at func(*Limits) *TRES, others ...string) limitField {
	return limitField{name: name, key: strings.ToLower(name), others: others, kind: limitTRES, on: on, tres: at}
}

func countLimit(name string, on int, at func(*Limits) *int64, others ...string) limitField {
	return limitField{name: name, key: strings.ToLower(name), others: others, kind: limitCount, on: on, number: at}
}

func timeLimit(name string, on int, at func(*Limits) *int64, others ...string) limitField {
	return limitField{name: name, key: strings.ToLower(name), others: others, kind: limitMinutes, on: on, number: at}
}

// limitFields are all limits. MaxJobs and its like are of the association, or of each user of a QOS.
var limitFields = []limitField{
	countLimit("GrpJobs", onAssociation|onQOS, func(l *Limits) *int64 { return &l.GrpJobs }),
	countLimit("GrpJobsAccrue", onAssociation|onQOS, func(l *Limits) *int64 { return &l.GrpJobsAccrue }),
	countLimit("GrpSubmitJobs", onAssociation|onQOS, func(l *Limits) *int64 { return &l.GrpSubmitJobs }, "grpsubmit"),
	tresLimit("GrpTRES", onAssociation|onQOS, func(l *Limits) *TRES { return &l.GrpTRES }),
	tresLimit("GrpTRESMins", onAssociation|onQOS, func(l *Limits) *TRES { return &l.GrpTRESMins }),
	tresLimit("GrpTRESRunMins", onAssociation|onQOS, func(l *Limits) *TRES { return &l.GrpTRESRunMins }),
	timeLimit("GrpWall", onAssociation|onQOS, func(l *Limits) *int64 { return &l.GrpWall }),
	countLimit("MaxJobs", onAssociation, func(l *Limits) *int64 { return &l.MaxJobs }, "maxjobsperuser"),
	countLimit("MaxJobsPerUser", onQOS, func(l *Limits) *int64 { return &l.MaxJobs }, "maxjobs", "maxjobspu"),
	countLimit("MaxJobsPerAccount", onQOS, func(l *Limits) *int64 { return &l.MaxJobsPerAccount }, "maxjobspa"),
	countLimit("MaxJobsAccrue", onAssociation, func(l *Limits) *int64 { return &l.MaxJobsAccrue }),
	countLimit("MaxJobsAccruePerUser", onQOS, func(l *Limits) *int64 { return &l.MaxJobsAccrue }, "maxjobsaccrue", "maxjobsaccruepu"),
	countLimit("MaxJobsAccruePerAccount", onQOS, func(l *Limits) *int64 { return &l.MaxJobsAccruePerAccount }, "maxjobsaccruepa"),
	countLimit("MaxSubmitJobs", onAssociation, func(l *Limits) *int64 { return &l.MaxSubmitJobs }, "maxsubmit"),
	countLimit("MaxSubmitJobsPerUser", onQOS, func(l *Limits) *int64 { return &l.MaxSubmitJobs }, "maxsubmitjobspu", "maxsubmitjobs", "maxsubmit", "maxsubmitpu"),
	countLimit("MaxSubmitJobsPerAccount", onQOS, func(l *Limits) *int64 { return &l.MaxSubmitJobsPerAccount }, "maxsubmitjobspa", "maxsubmitpa"),
	tresLimit("MaxTRESPerJob", onAssociation|onQOS, func(l *Limits) *TRES { return &l.MaxTRESPerJob }, "maxtrespj", "maxtres"),
	tresLimit("MaxTRESPerNode", onAssociation|onQOS, func(l *Limits) *TRES { return &l.MaxTRESPerNode }, "maxtrespn"),
	tresLimit("MaxTRESPerUser", onQOS, func(l *Limits) *TRES { return &l.MaxTRESPerUser }, "maxtrespu"),
	tresLimit("MaxTRESPerAccount", onQOS, func(l *Limits) *TRES { return &l.MaxTRESPerAccount }, "maxtrespa"),
	tresLimit("MaxTRESMinsPerJob", onAssociation|onQOS, func(l *Limits) *TRES { return &l.MaxTRESMinsPerJob }, "maxtresminspj", "maxtresmins"),
	tresLimit("MaxTRESRunMinsPerUser", onQOS, func(l *Limits) *TRES { return &l.MaxTRESRunMinsPerUser }, "maxtresrunminspu"),
	tresLimit("MaxTRESRunMinsPerAccount", onQOS, func(l *Limits) *TRES { return &l.MaxTRESRunMinsPerAccount }, "maxtresrunminspa"),
	tresLimit("MinTRESPerJob", onQOS, func(l *Limits) *TRES { return &l.MinTRESPerJob }, "mintrespj", "mintres"),
	timeLimit("MaxWallDurationPerJob", onAssociation|onQOS, func(l *Limits) *int64 { return &l.MaxWallDurationPerJob }, "maxwallpj", "maxwall"),
	countLimit("MinPrioThreshold", onAssociation|onQOS, func(l *Limits) *int64 { return &l.MinPrioThreshold }, "minprio"),
}

// oldLimits are the names of before there were TRES: the limit and the TRES that they stand for.
var oldLimits = map[string][2]string{
	"grpcpus": {"grptres", "cpu"}, "grpmemory": {"grptres", "mem"}, "grpmem": {"grptres", "mem"}, "grpnodes": {"grptres", "node"},
	"grpcpumins": {"grptresmins", "cpu"}, "grpcpurunmins": {"grptresrunmins", "cpu"},
	"maxcpus": {"maxtres", "cpu"}, "maxcpusperjob": {"maxtres", "cpu"}, "maxnodes": {"maxtres", "node"}, "maxnodesperjob": {"maxtres", "node"},
	"maxcpumins": {"maxtresmins", "cpu"}, "maxcpuminsperjob": {"maxtresmins", "cpu"},
	"maxcpusperuser": {"maxtrespu", "cpu"}, "maxcpuspu": {"maxtrespu", "cpu"}, "maxnodesperuser": {"maxtrespu", "node"}, "maxnodespu": {"maxtrespu", "node"},
	"mincpus": {"mintres", "cpu"}, "mincpusperjob": {"mintres", "cpu"},
}
