package gacctmgr

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// Keys by entity, as a person reads them. A clause carries the lower-case name.
var (
	limitKeys = []string{
		"Fairshare", "Priority", "QOS", "DefaultQOS", "GrpJobs", "GrpJobsAccrue", "GrpSubmitJobs", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins",
		"GrpWall", "MaxJobs", "MaxJobsAccrue", "MaxSubmitJobs", "MaxTRESPerJob", "MaxTRESPerNode", "MaxTRESMinsPerJob",
		"MaxWallDurationPerJob", "MinPrioThreshold", "Comment",
	}
	accountKeys = []string{"Name", "Parent", "Description", "Organization", "Cluster", "RawUsage"}
	userKeys    = []string{"Name", "Account", "Partition", "DefaultAccount", "AdminLevel", "Cluster", "DefaultWCKey", "RawUsage"}
	qosKeys     = []string{
		"Name", "ID", "Description", "Priority", "Flags", "GraceTime", "Preempt", "PreemptMode", "PreemptExemptTime", "UsageFactor",
		"UsageThreshold", "LimitFactor", "GrpJobs", "GrpJobsAccrue", "GrpSubmitJobs", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpWall",
		"MaxJobsPerUser", "MaxJobsPerAccount", "MaxJobsAccruePerUser", "MaxJobsAccruePerAccount", "MaxSubmitJobsPerUser",
		"MaxSubmitJobsPerAccount", "MaxTRESPerJob", "MaxTRESPerNode", "MaxTRESPerUser", "MaxTRESPerAccount", "MaxTRESMinsPerJob",
		"MaxTRESRunMinsPerUser", "MaxTRESRunMinsPerAccount", "MaxWallDurationPerJob", "MinPrioThreshold", "MinTRESPerJob", "RawUsage",
	}
	coordKeys   = []string{"Name", "Account", "Cluster"}
	assocKeys   = []string{"Account", "User", "Partition", "Cluster", "Parent", "QOS", "DefaultQOS", "ID", "Fairshare"}
	tresKeys    = []string{"Name", "Type", "ID"}
	clusterKeys = []string{"Name"}
)

// otherNames are further spellings of keys.
var otherNames = map[string]string{
	"names": "name", "accounts": "account", "acct": "account", "accts": "account", "users": "user", "clusters": "cluster", "partitions": "partition",
	"shares": "fairshare", "share": "fairshare", "qoslevel": "qos", "defaultacct": "defaultaccount", "maxtres": "maxtresperjob",
	"maxtresmins": "maxtresminsperjob", "maxwall": "maxwalldurationperjob", "maxsubmit": "maxsubmitjobs", "grpsubmit": "grpsubmitjobs",
	"maxtrespu": "maxtresperuser", "maxtrespa": "maxtresperaccount", "maxjobspu": "maxjobsperuser", "maxjobspa": "maxjobsperaccount",
	"maxsubmitpu": "maxsubmitjobsperuser", "maxsubmitpa": "maxsubmitjobsperaccount", "maxsubmitjobspu": "maxsubmitjobsperuser",
	"maxsubmitjobspa": "maxsubmitjobsperaccount", "maxsubmitperuser": "maxsubmitjobsperuser", "maxsubmitperaccount": "maxsubmitjobsperaccount",
	"maxtresrunminspu": "maxtresrunminsperuser", "maxtresrunminspa": "maxtresrunminsperaccount", "mintres": "mintresperjob",
	"maxwallpj": "maxwalldurationperjob", "maxtrespj": "maxtresperjob", "maxtrespn": "maxtrespernode", "maxtresperacct": "maxtresperaccount",
	"maxjobsperacct": "maxjobsperaccount", "descr": "description", "org": "organization",
	"coordinator": "name", "coord": "name",
}

// oldLimits are keys of before TRES; the value becomes that of one resource.
var oldLimits = map[string][2]string{
	"grpcpus": {"grptres", "cpu"}, "grpmem": {"grptres", "mem"}, "grpnodes": {"grptres", "node"}, "grpcpumins": {"grptresmins", "cpu"},
	"grpcpurunmins": {"grptresrunmins", "cpu"}, "maxcpus": {"maxtresperjob", "cpu"}, "maxcpusperjob": {"maxtresperjob", "cpu"},
	"maxnodes": {"maxtresperjob", "node"}, "maxnodesperjob": {"maxtresperjob", "node"}, "maxcpumins": {"maxtresminsperjob", "cpu"},
	"maxcpuminsperjob": {"maxtresminsperjob", "cpu"}, "maxcpusperuser": {"maxtresperuser", "cpu"}, "maxnodesperuser": {"maxtresperuser", "node"},
}

// entity is a kind of things.
type entity struct {
	name    string // as a request carries it
	short   int
	keys    [][]string
	changes bool
	missing string // why it cannot be shown either
}

var entities = []entity{
	{name: "account", short: 2, keys: [][]string{accountKeys, limitKeys}, changes: true},
	{name: "association", short: 2, keys: [][]string{assocKeys}},
	{name: "cluster", short: 2, keys: [][]string{clusterKeys}},
	{name: "coordinator", short: 2, keys: [][]string{coordKeys}, changes: true},
	{name: "qos", short: 1, keys: [][]string{qosKeys}, changes: true},
	{name: "tres", short: 2, keys: [][]string{tresKeys}},
	{name: "user", short: 1, keys: [][]string{userKeys, limitKeys}, changes: true},
	{name: "configuration", short: 2, missing: "it is shown by: gctl show config"},
	{name: "event", short: 1, missing: "events of nodes are not kept"},
	{name: "federation", short: 1, missing: "there is one cluster"},
	{name: "problem", short: 1, missing: "associations that nobody can use do not come to be"},
	{name: "reservation", short: 3, missing: "reservations are shown by: gctl show reservation"},
	{name: "resource", short: 4, missing: "licenses are shown by: gctl show licenses"},
	{name: "runawayjobs", short: 2, missing: "a job that ended is ended everywhere"},
	{name: "stats", short: 2, missing: "there is no database to have any"},
	{name: "transaction", short: 2, missing: "changes are in the audit log"},
	{name: "wckey", short: 1, missing: "keys of workloads have no records; they are kept with the job"},
}

// findEntity reads the word after the verb; plurals are taken too.
func findEntity(word string) (*entity, error) {
	low := strings.ToLower(word)
	if low == "acct" || low == "accts" {
		low = "account"
	}
	for _, w := range []string{low, strings.TrimSuffix(low, "s")} {
		for i := range entities {
			e := &entities[i]
			if w == e.name || len(w) >= e.short && strings.HasPrefix(e.name, w) {
				if e.missing != "" {
					return nil, fmt.Errorf("%s: not kept here\n%s", e.name, e.missing)
				}
				return e, nil
			}
		}
	}
	return nil, fmt.Errorf("No valid entity in command: %q\nit must be one of account, association, cluster, coordinator, qos, tres, user", word)
}

// key finds the full name of a word: an exact one, another spelling, or the only one that it begins.
func (e *entity) key(word string) (string, error) {
	low := strings.ToLower(word)
	if one := strings.TrimSuffix(low, "s"); one == e.name && e.changes || one == "user" && e.name == "coordinator" {
		return "name", nil // account= of an account is its name
	}
	var all []string
	for _, set := range e.keys {
		for _, k := range set {
			all = append(all, strings.ToLower(k))
		}
	}
	if slices.Contains(all, low) {
		return low, nil
	}
	full, known := otherNames[low]
	if known && slices.Contains(all, full) {
		return full, nil
	}
	// What is of each user in a QOS has a shorter name in old scripts.
	for _, w := range []string{low, full} {
		if strings.HasPrefix(w, "max") && slices.Contains(all, w+"peruser") {
			return w + "peruser", nil
		}
	}
	var match []string
	for _, k := range all {
		if low != "" && strings.HasPrefix(k, low) && !slices.Contains(match, k) {
			match = append(match, k)
		}
	}
	switch len(match) {
	case 1:
		return match[0], nil
	case 0:
		return "", fmt.Errorf("Unknown option: %s\n%s has no such key; known are %s", word, e.name, strings.Join(all, ", "))
	}
	return "", fmt.Errorf("Unknown option: %s\nit may be %s", word, strings.Join(match, " or "))
}

// command is what follows an entity.
type command struct {
	where, set                 []*ctldpb.Clause
	format                     string
	withAssoc, tree, withCoord bool
}

// parse reads the clauses. Words without a key are names. In add all is set; else what stands before "set" is where.
func (e *entity) parse(verb string, args []string) (*command, error) {
	cmd := &command{}
	setting := verb == "add"
	for _, a := range args {
		low := strings.ToLower(a)
		switch {
		case low == "where":
			if verb == "add" {
				return nil, fmt.Errorf("Unknown option: where\nadd takes KEY=VALUE words only")
			}
			setting = false
			continue
		case low == "set":
			if verb != "modify" && verb != "add" {
				return nil, fmt.Errorf("Unknown option: set\nit belongs to modify and add")
			}
			setting = true
			continue
		case verb == "list" && cmd.flag(low):
			continue
		}
		clause, err := e.clause(cmd, verb, a)
		if err != nil {
			return nil, err
		}
		switch {
		case clause == nil:
		case setting:
			cmd.set = append(cmd.set, clause)
		case clause.Op != "=":
			return nil, fmt.Errorf("%s: a condition takes = only", a)
		default:
			cmd.where = append(cmd.where, clause)
		}
	}
	cmd.where, cmd.set = joinNames(cmd.where), joinNames(cmd.set)
	return cmd, nil
}

// flag takes the words of list that have no value.
func (cmd *command) flag(low string) bool {
	has := func(word string, short int) bool { return len(low) >= short && strings.HasPrefix(word, low) }
	switch {
	case has("withassoc", 5), has("withassocs", 10), has("withsubaccounts", 8):
		cmd.withAssoc = true
	case has("tree", 4):
		cmd.tree = true
	case has("withcoordinators", 5):
		cmd.withCoord = true
	case has("withdeleted", 5), has("withrawqoslevel", 5), has("wopinfo", 4), has("woplimits", 4):
		// What is deleted is gone, QOS are shown by name, and limits only where they are set: these make no difference.
	default:
		return false
	}
	return true
}

// clause reads one word; nil when it was format=.
func (e *entity) clause(cmd *command, verb, word string) (*ctldpb.Clause, error) {
	key, value, has := strings.Cut(word, "=")
	if !has {
		return &ctldpb.Clause{Name: e.named(), Op: "=", Value: word}, nil
	}
	op := "="
	if n := len(key); n > 0 && (key[n-1] == '+' || key[n-1] == '-') {
		op, key = key[n-1:]+"=", key[:n-1]
	}
	value = unquote(value)
	low := strings.ToLower(key)
	if verb == "list" && len(low) > 2 && strings.HasPrefix("format", low) {
		cmd.format = value
		return nil, nil
	}
	if verb == "list" && len(low) > 1 && strings.HasPrefix("order", low) {
		return nil, nil
	}
	if old, ok := oldLimits[low]; ok {
		if name, err := e.key(old[0]); err == nil {
			return &ctldpb.Clause{Name: name, Op: op, Value: old[1] + "=" + value}, nil
		}
	}
	name, err := e.key(key)
	if err != nil {
		return nil, err
	}
	if value == "" && (name == "name" || name == e.named()) {
		return nil, fmt.Errorf("%s= names nothing\nan empty list is not taken for everything", key)
	}
	return &ctldpb.Clause{Name: name, Op: op, Value: value}, nil
}

// named is the key that a word without one belongs to.
func (e *entity) named() string {
	if e.name == "association" {
		return "account"
	}
	return "name"
}

// joinNames makes one clause of all names: "add user bob amy".
func joinNames(list []*ctldpb.Clause) []*ctldpb.Clause {
	var out []*ctldpb.Clause
	for _, c := range list {
		if i := slices.IndexFunc(out, func(o *ctldpb.Clause) bool { return o.Name == "name" }); c.Name == "name" && i >= 0 {
			out[i].Value += "," + c.Value
			continue
		}
		out = append(out, c)
	}
	return out
}

// unquote takes quotes of either kind away.
func unquote(s string) string {
	if n := len(s); n >= 2 && (s[0] == '"' || s[0] == '\'') && s[n-1] == s[0] {
		return s[1 : n-1]
	}
	return s
}
