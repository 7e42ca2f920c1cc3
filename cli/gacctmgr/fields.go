package gacctmgr

import (
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/render"
)

// field is one column of a list: its name in format=, what stands above it, its width, and the keys of a row that hold
// it, the first that is there.
type field struct {
	name, header string
	width        int
	keys         string
	of           string // association: only an association has it, so the lists of users and accounts are joined with those
}

const ofAssociation = "association"

// fields are in the order in which a short form finds them.
var fields = []field{
	{"Account", "Account", 10, "account name", ofAssociation},
	{"AdminLevel", "Admin", 9, "adminlevel level", ""},
	{"Cluster", "Cluster", 10, "cluster", ofAssociation},
	{"ControlHost", "ControlHost", 15, "controlhost", ""},
	{"ControlPort", "ControlPort", 12, "controlport", ""},
	{"Comment", "Comment", 20, "comment", ""},
	{"Coordinators", "Coord Accounts", 20, "coordinators coordinator", ""},
	{"DefaultAccount", "Def Acct", 10, "defaultaccount", ""},
	{"DefaultQOS", "Def QOS", 9, "defaultqos", ofAssociation},
	{"DefaultWCKey", "Def WCKey", 10, "defaultwckey", ""},
	{"Description", "Descr", 20, "description descr", ""},
	{"Fairshare", "Share", 9, "fairshare share shares", ofAssociation},
	{"Flags", "Flags", 20, "flags", ""},
	{"GraceTime", "GraceTime", 10, "gracetime", ""},
	{"GrpJobs", "GrpJobs", 7, "grpjobs", ofAssociation},
	{"GrpJobsAccrue", "GrpJobsAccrue", 13, "grpjobsaccrue", ofAssociation},
	{"GrpSubmitJobs", "GrpSubmit", 9, "grpsubmitjobs grpsubmit", ofAssociation},
	{"GrpTRES", "GrpTRES", 13, "grptres", ofAssociation},
	{"GrpTRESMins", "GrpTRESMins", 13, "grptresmins", ofAssociation},
	{"GrpTRESRunMins", "GrpTRESRunMins", 13, "grptresrunmins", ofAssociation},
	{"GrpWall", "GrpWall", 11, "grpwall", ofAssociation},
	{"ID", "ID", 6, "id", ""},
	{"LimitFactor", "LimitFactor", 11, "limitfactor", ""},
	{"MaxJobs", "MaxJobs", 7, "maxjobs maxjobsperuser", ofAssociation},
	{"MaxJobsAccrue", "MaxJobsAccrue", 13, "maxjobsaccrue", ofAssociation},
	{"MaxJobsPerUser", "MaxJobsPU", 9, "maxjobsperuser maxjobspu", ""},
	{"MaxJobsPerAccount", "MaxJobsPA", 9, "maxjobsperaccount maxjobspa", ""},
	{"MaxJobsAccruePerUser", "MaxJobsAccruePU", 15, "maxjobsaccrueperuser", ""},
	{"MaxJobsAccruePerAccount", "MaxJobsAccruePA", 15, "maxjobsaccrueperaccount", ""},
	{"MaxSubmitJobs", "MaxSubmit", 9, "maxsubmitjobs maxsubmit", ofAssociation},
	{"MaxSubmitJobsPerUser", "MaxSubmitPU", 11, "maxsubmitjobsperuser maxsubmitpu", ""},
	{"MaxSubmitJobsPerAccount", "MaxSubmitPA", 11, "maxsubmitjobsperaccount maxsubmitpa", ""},
	{"MaxTRES", "MaxTRES", 13, "maxtresperjob maxtres", ofAssociation},
	{"MaxTRESPerJob", "MaxTRES", 13, "maxtresperjob maxtres", ofAssociation},
	{"MaxTRESPerNode", "MaxTRESPerNode", 14, "maxtrespernode", ofAssociation},
	{"MaxTRESPerUser", "MaxTRESPU", 13, "maxtresperuser maxtrespu", ""},
	{"MaxTRESPerAccount", "MaxTRESPA", 13, "maxtresperaccount maxtrespa", ""},
	{"MaxTRESMins", "MaxTRESMins", 13, "maxtresminsperjob maxtresmins", ofAssociation},
	{"MaxTRESMinsPerJob", "MaxTRESMins", 13, "maxtresminsperjob maxtresmins", ofAssociation},
	{"MaxTRESRunMinsPerUser", "MaxTRESRunMinsPU", 16, "maxtresrunminsperuser", ""},
	{"MaxTRESRunMinsPerAccount", "MaxTRESRunMinsPA", 16, "maxtresrunminsperaccount", ""},
	{"MaxWall", "MaxWall", 11, "maxwalldurationperjob maxwall", ofAssociation},
	{"MaxWallDurationPerJob", "MaxWall", 11, "maxwalldurationperjob maxwall", ofAssociation},
	{"MinPrioThreshold", "MinPrioThres", 12, "minpriothreshold", ""},
	{"MinTRESPerJob", "MinTRES", 13, "mintresperjob mintres", ""},
	{"Name", "Name", 10, "name user account", ""},
	{"Organization", "Org", 20, "organization org", ""},
	{"ParentID", "Par ID", 6, "parentid", ofAssociation},
	{"ParentName", "Par Name", 10, "parentname parent", ofAssociation},
	{"Partition", "Partition", 10, "partition", ofAssociation},
	{"Preempt", "Preempt", 10, "preempt", ""},
	{"PreemptExemptTime", "PreemptExemptTime", 19, "preemptexempttime", ""},
	{"PreemptMode", "PreemptMode", 11, "preemptmode", ""},
	{"Priority", "Priority", 10, "priority", ofAssociation},
	{"QOS", "QOS", 20, "qos", ofAssociation},
	{"QOSLevel", "QOS", 20, "qos", ofAssociation},
	{"QOSRAW", "QOS_RAW", 10, "qosraw qos", ofAssociation},
	{"RPC", "RPC", 5, "rpc", ""},
	{"Share", "Share", 9, "fairshare share shares", ofAssociation},
	{"Type", "Type", 8, "type", ""},
	{"TRES", "TRES", 20, "tres", ""},
	{"UsageFactor", "UsageFactor", 11, "usagefactor", ""},
	{"UsageThreshold", "UsageThres", 10, "usagethreshold", ""},
	{"User", "User", 10, "user name", ""},
}

// formats are the columns of each entity when none are asked for.
var formats = map[string]string{
	"account":     "Account,Description,Organization",
	"association": "Cluster,Account,User,Partition,Share,Priority,GrpJobs,GrpTRES,GrpSubmitJobs,GrpWall,GrpTRESMins,MaxJobs,MaxTRES,MaxTRESPerNode,MaxSubmitJobs,MaxWall,MaxTRESMins,QOS,DefaultQOS,GrpTRESRunMins",
	"cluster":     "Cluster,ControlHost,ControlPort,RPC,Share,GrpJobs,GrpTRES,GrpSubmitJobs,MaxJobs,MaxTRES,MaxSubmitJobs,MaxWall,QOS,DefaultQOS",
	"coordinator": "Account,User",
	"qos":         "Name,Priority,GraceTime,Preempt,PreemptExemptTime,PreemptMode,Flags%40,UsageThreshold,UsageFactor,GrpTRES,GrpTRESMins,GrpTRESRunMins,GrpJobs,GrpSubmitJobs,GrpWall,MaxTRES,MaxTRESPerNode,MaxTRESMins,MaxWall,MaxTRESPerUser,MaxJobsPerUser,MaxSubmitJobsPerUser,MaxTRESPerAccount,MaxJobsPerAccount,MaxSubmitJobsPerAccount,MinTRESPerJob",
	"tres":        "Type,Name%15,ID",
	"user":        "User,DefaultAccount,AdminLevel",
}

// joined are the columns that withassoc adds.
const joined = ",Cluster,Account,Partition,Share,Priority,MaxJobs,MaxTRES,MaxSubmitJobs,MaxWall,MaxTRESMins,QOS,DefaultQOS"

// shortForms are abbreviations that begin several fields, and the one that Slurm takes them for.
var shortForms = map[string]string{
	"acct": "Account", "c": "Cluster", "cl": "Cluster", "a": "Account", "ac": "Account", "acc": "Account", "u": "User", "us": "User", "p": "Partition",
	"part": "Partition", "par": "ParentName", "parent": "ParentName", "defaulta": "DefaultAccount", "defaultq": "DefaultQOS", "defaultacct": "DefaultAccount",
	"prio": "Priority", "pri": "Priority", "des": "Description", "o": "Organization", "org": "Organization", "maxj": "MaxJobs", "maxs": "MaxSubmitJobs",
	"maxsubmit": "MaxSubmitJobs", "grpj": "GrpJobs", "grps": "GrpSubmitJobs", "grpsubmit": "GrpSubmitJobs", "grpw": "GrpWall", "maxw": "MaxWall",
	"maxtrespu": "MaxTRESPerUser", "maxtrespa": "MaxTRESPerAccount", "maxjobspu": "MaxJobsPerUser", "maxjobspa": "MaxJobsPerAccount",
	"maxsubmitpu": "MaxSubmitJobsPerUser", "maxsubmitpa": "MaxSubmitJobsPerAccount", "maxsubmitjobspu": "MaxSubmitJobsPerUser",
	"maxsubmitjobspa": "MaxSubmitJobsPerAccount", "maxtrespj": "MaxTRES", "mintres": "MinTRESPerJob", "gracet": "GraceTime", "admin": "AdminLevel",
	"shares": "Share", "descr": "Description", "coord": "Coordinators", "grptresrunmin": "GrpTRESRunMins", "maxsubmitperuser": "MaxSubmitJobsPerUser",
}

// findField reads a name of format=: an exact one, a known short form, or the first field that it begins.
func findField(name string) (*field, error) {
	low := strings.ToLower(name)
	if full, ok := shortForms[low]; ok {
		low = strings.ToLower(full)
	}
	for i := range fields {
		if strings.ToLower(fields[i].name) == low {
			return &fields[i], nil
		}
	}
	for i := range fields {
		if low != "" && strings.HasPrefix(strings.ToLower(fields[i].name), low) {
			return &fields[i], nil
		}
	}
	return nil, fmt.Errorf("Unknown field '%s'\nknown are %s", name, fieldNames())
}

func fieldNames() string {
	var names []string
	for i := range fields {
		names = append(names, fields[i].name)
	}
	return strings.Join(names, ", ")
}

// parseFormat reads "account,user%20,share%-5".
func parseFormat(format string) (shown []*field, cols []render.ReportColumn, err error) {
	for word := range strings.SplitSeq(format, ",") {
		if strings.TrimSpace(word) == "" {
			continue
		}
		name, width, err := render.FieldWidth(word, 0)
		if err != nil {
			return nil, nil, err
		}
		f, err := findField(name)
		if err != nil {
			return nil, nil, err
		}
		if width == 0 {
			width = f.width
		}
		shown, cols = append(shown, f), append(cols, render.ReportColumn{Name: f.header, Width: width})
		if len(cols) > render.MaxColumns {
			return nil, nil, fmt.Errorf("more than %d fields in one format", render.MaxColumns)
		}
	}
	if len(cols) == 0 {
		return nil, nil, fmt.Errorf("format= names no field\nknown are %s", fieldNames())
	}
	return shown, cols, nil
}

// value finds what a row says of the field. The name of a row is that of what is listed: an account has no user.
func (f *field) value(entity string, row map[string]string) string {
	for key := range strings.FieldsSeq(f.keys) {
		if key == "name" && (f.name == "Account" && entity != "account" || f.name == "User" && entity != "user") {
			continue
		}
		if f.name == "Name" && (key == "user" && entity != "user" || key == "account" && entity != "account") {
			continue
		}
		if v := row[key]; v != "" {
			return v
		}
	}
	return ""
}
