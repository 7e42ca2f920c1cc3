package partitions

import (
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

func open() *Partition { return &Partition{Name: "p", State: "UP", MaxTime: job.Unlimited} }

func rare(name, value string) []job.Option { return []job.Option{{Name: name, Value: value}} }

func four() []Capacity {
	c := func(name string, cpus uint32, gres string, features ...string) Capacity {
		return Capacity{Name: name, CPUs: cpus, Mem: 8 << 30, TmpDisk: 1 << 30, Gres: gres, Features: features, Sockets: 2, Cores: 2, Threads: 1, Usable: true}
	}
	return []Capacity{c("n1", 4, "gpu:a100:4", "fast"), c("n2", 4, "gpu:a100:4", "fast", "ib"), c("n3", 8, ""), {Name: "n4", CPUs: 64, Mem: 1 << 40}}
}

// TestAdmit: one line a clause; code "" means admitted, why must stand in the second line.
func TestAdmit(t *testing.T) {
	type J = job.Spec
	for name, c := range map[string]struct {
		part func(p *Partition)
		spec J
		who  Who
		code string
		why  string
	}{
		"plain":                  {spec: J{}},
		"eight cpus":             {spec: J{CPUsPerTask: 8}},
		"nine cpus":              {spec: J{CPUsPerTask: 9}, code: "NODE_CONFIG", why: "9 CPUs on one node were asked, n1 has 4"},
		"tasks over nodes":       {spec: J{NTasks: 16, MinNodes: 3, MaxNodes: 3}},
		"too many tasks":         {spec: J{NTasks: 17, MinNodes: 3, MaxNodes: 3}, code: "NODE_CONFIG", why: "hold 16 of them"},
		"tasks on few nodes":     {spec: J{NTasks: 10, MinNodes: 2, MaxNodes: 2}},
		"per node":               {spec: J{MinNodes: 2, MaxNodes: 2, NTasksPerNode: 5}, code: "NODE_CONFIG", why: "5 CPUs on one node"},
		"more nodes than here":   {spec: J{MinNodes: 5}, code: "INVALID_NODE_COUNT", why: "5 nodes were asked, partition p has 4"},
		"future node":            {spec: J{MinNodes: 4}, code: "NODE_CONFIG", why: "n4 is not in service"},
		"memory":                 {spec: J{MemPerNode: 9 << 30}, code: "NODE_CONFIG", why: "9G of memory on one node"},
		"whole memory":           {spec: J{MemPerNode: job.WholeNode}},
		"memory a cpu":           {spec: J{MemPerCPU: 3 << 30, CPUsPerTask: 4}, code: "NODE_CONFIG", why: "3G for each of 4 CPUs"},
		"gpu":                    {spec: J{Gres: "gpu:2"}},
		"gpu type":               {spec: J{Gres: "gpu:h100:1"}, code: "NODE_CONFIG", why: "gpu:h100:1 on one node was asked, n1 has gpu:a100:4"},
		"gpu on three":           {spec: J{Gres: "gpu:1", MinNodes: 3}, code: "NODE_CONFIG", why: "2 of the 4"},
		"feature":                {spec: J{Constraint: "fast&ib"}},
		"feature missing":        {spec: J{Constraint: "slow"}, code: "INVALID_FEATURE", why: `"slow"`},
		"feature words":          {spec: J{Constraint: "a&"}, code: "INVALID_FEATURE", why: "missing"},
		"nodelist":               {spec: J{NodeList: "n[1-2]"}},
		"nodelist counts":        {spec: J{NodeList: "n[1-3]"}, part: func(p *Partition) { p.MaxNodes = 2 }, code: "INVALID_NODE_COUNT", why: "--nodelist names 3 nodes, MaxNodes of partition p is 2"},
		"nodelist fits":          {spec: J{NodeList: "n[1-2]"}, part: func(p *Partition) { p.MaxNodes = 2 }},
		"nodelist twice":         {spec: J{NodeList: "n1,n1,n1"}, part: func(p *Partition) { p.MaxNodes = 1 }},
		"nodelist over nodes":    {spec: J{NodeList: "n[1-3]", MinNodes: 1, MaxNodes: 2}},
		"nodelist over, few fit": {spec: J{NodeList: "n[1-3]", MinNodes: 2, MaxNodes: 2, CPUsPerTask: 8}, code: "NODE_CONFIG", why: "2 nodes were asked, 1 of the 4"},
		"nodelist over MaxNodes": {spec: J{NodeList: "n[1-3]", MinNodes: 2}, part: func(p *Partition) { p.MaxNodes = 2 }},
		"nodelist over tasks":    {spec: J{NodeList: "n[1-3]", NTasks: 2}},
		"nodelist and more":      {spec: J{NodeList: "n1", MinNodes: 3, MaxNodes: 3}},
		"nodelist holds few":     {spec: J{NodeList: "n[1-2]", NTasks: 12, MinNodes: 2, MaxNodes: 2}, code: "NODE_CONFIG", why: "hold 8 of them"},
		"nodelist and the best":  {spec: J{NodeList: "n1", NTasks: 12, MinNodes: 2, MaxNodes: 2}},
		"nodelist stranger":      {spec: J{NodeList: "x"}, code: "NODES_NOT_IN_PARTITION", why: "node x is not in partition p (n[1-4])"},
		"nodelist cannot":        {spec: J{NodeList: "n1", CPUsPerTask: 8}, code: "NODE_CONFIG", why: "node n1 cannot hold the job"},
		"nodelist pattern":       {spec: J{NodeList: "n[3-1]"}, code: "INVALID_NODE_NAME", why: "n[3-1]"},
		"excluded":               {spec: J{Exclude: "n3", CPUsPerTask: 8}, code: "NODE_CONFIG", why: "asked"},
		"disk":                   {spec: J{MinTmpDisk: 2 << 30}, code: "NODE_CONFIG", why: "2G of local disk"},
		"time":                   {part: func(p *Partition) { p.MaxTime = 3600e3 }, spec: J{TimeLimit: 7200e3}, code: "INVALID_TIME_LIMIT", why: "02:00:00 was asked, MaxTime of partition p is 01:00:00"},
		"time unlimited":         {part: func(p *Partition) { p.MaxTime = 3600e3 }, spec: J{TimeLimit: job.Unlimited}, code: "INVALID_TIME_LIMIT", why: "UNLIMITED"},
		"time-min fits":          {part: func(p *Partition) { p.MaxTime = 3600e3 }, spec: J{TimeLimit: 7200e3, TimeMin: 60e3}},
		"no time asked":          {part: func(p *Partition) { p.MaxTime = 3600e3 }},
		"max nodes":              {part: func(p *Partition) { p.MaxNodes = 2 }, spec: J{MinNodes: 3}, code: "INVALID_NODE_COUNT", why: "MaxNodes of partition p is 2"},
		"min nodes":              {part: func(p *Partition) { p.MinNodes = 2 }, spec: J{MinNodes: 1, MaxNodes: 1}, code: "INVALID_NODE_COUNT", why: "MinNodes of partition p is 2"},
		"max mem":                {part: func(p *Partition) { p.MaxMemPerNode = 1 << 30 }, spec: J{MemPerNode: 2 << 30}, code: "INVALID_TASK_MEMORY", why: "MaxMemPerNode"},
		"max mem a cpu":          {part: func(p *Partition) { p.MaxMemPerCPU = 1 << 30 }, spec: J{MemPerCPU: 2 << 30, CPUsPerTask: 2}},
		"max mem, too many cpus": {part: func(p *Partition) { p.MaxMemPerCPU = 1 << 30 }, spec: J{MemPerCPU: 3 << 30, CPUsPerTask: 3}, code: "NODE_CONFIG", why: "9 CPUs on one node"},
		"max mem a cpu, node":    {part: func(p *Partition) { p.MaxMemPerCPU = 512 << 20 }, spec: J{MemPerNode: 8 << 30}, code: "NODE_CONFIG", why: "16 CPUs on one node"},
		"denied qos":             {part: func(p *Partition) { p.DenyQOS = []string{"a"} }, spec: J{QOS: "a"}, code: "INVALID_QOS", why: "denies"},
		"needs a reservation":    {part: func(p *Partition) { p.ReqResv = true }, code: "RESERVATION_INVALID", why: "--reservation"},
		"has a reservation":      {part: func(p *Partition) { p.ReqResv = true }, spec: J{Rare: rare(job.OptReservation, "r")}},
		"sockets":                {spec: J{Rare: rare(job.OptSockets, "4")}, code: "NODE_CONFIG", why: "--sockets-per-node=4 (n1 has 2)"},
		"sockets fit":            {spec: J{Rare: rare(job.OptSockets, "2")}},
		"threads":                {spec: J{Rare: rare(job.OptThreads, "2")}, code: "NODE_CONFIG", why: "--threads-per-core=2"},
		"overcommit":             {spec: J{NTasks: 100, MinNodes: 1, MaxNodes: 1, Rare: rare(job.OptOvercommit, "yes")}},
		"a bad option":           {spec: J{Rare: rare(job.OptCores, "x")}, code: "INVALID_VALUE", why: "cores-per-socket"},
		"partition's cpus":       {part: func(p *Partition) { p.MaxCPUsPerNode = 3 }, spec: J{CPUsPerTask: 4}, code: "NODE_CONFIG", why: "n1 has 3"},
		"feature counts":         {spec: J{Constraint: "[fast*2&ib*1]", MinNodes: 2}},
		"feature counts, few":    {spec: J{Constraint: "[fast*1&ib*2]", MinNodes: 2}, code: "INVALID_FEATURE", why: `2 nodes with "ib"`},
		"alternatives":           {spec: J{Constraint: "[fast|ib]", MinNodes: 2}},
		"alternatives, unlike":   {spec: J{Constraint: "[slow|ib]", MinNodes: 2}, code: "NODE_CONFIG", why: "1 of the 4"},
		"down partition queues":  {part: func(p *Partition) { p.State = "DOWN" }},
		"drained partition":      {part: func(p *Partition) { p.State = "DRAIN" }, code: "PARTITION_NOT_AVAIL", why: "DRAIN"},
		"inactive partition":     {part: func(p *Partition) { p.State = "INACTIVE" }, code: "PARTITION_NOT_AVAIL", why: "INACTIVE"},
		"root only":              {part: func(p *Partition) { p.RootOnly = true }, who: Who{UID: 7}, code: "ACCESS_DENIED", why: "only root"},
		"root only, root":        {part: func(p *Partition) { p.RootOnly = true }},
		"no root":                {part: func(p *Partition) { p.NoRoot = true }, code: "ACCESS_DENIED", why: "DisableRootJobs"},
		"group":                  {part: func(p *Partition) { p.AllowGroups = []string{"g"} }, who: Who{UID: 7, Groups: []string{"f", "g"}}},
		"other group":            {part: func(p *Partition) { p.AllowGroups = []string{"g"} }, who: Who{UID: 7, Groups: []string{"f"}}, code: "USER_ID_MISSING", why: "for the groups g"},
		"account":                {part: func(p *Partition) { p.AllowAccounts = []string{"a"} }, spec: J{Account: "b"}, code: "INVALID_ACCOUNT", why: "for the accounts a"},
		"denied account":         {part: func(p *Partition) { p.DenyAccounts = []string{"a"} }, spec: J{Account: "a"}, code: "INVALID_ACCOUNT", why: "denies"},
		"qos":                    {part: func(p *Partition) { p.AllowQOS = []string{"a"} }, spec: J{QOS: "b"}, code: "INVALID_QOS", why: "for the QOS a"},
	} {
		p := open()
		if c.part != nil {
			c.part(p)
		}
		r := Admit(p, &c.spec, c.who, four())
		switch {
		case c.code == "" && r != nil:
			t.Errorf("%s: refused: %+v", name, *r)
		case c.code != "" && r == nil:
			t.Errorf("%s: admitted, want %s", name, c.code)
		case r != nil && (!strings.Contains(r.Code, c.code) || !strings.Contains(r.Why, c.why) || r.Text == ""):
			t.Errorf("%s: %+v, want code %s and %q", name, *r, c.code, c.why)
		}
	}
}

// TestNamesOfAccounts: accounts and QOS have no case, as they have none in the accounts' own tree.
func TestNamesOfAccounts(t *testing.T) {
	p := open()
	p.AllowAccounts, p.DenyAccounts, p.AllowQOS, p.DenyQOS = []string{"Physics", "ART"}, []string{"Art"}, []string{"High", "LOW"}, []string{"Low"}
	for _, c := range []struct{ account, qos, code string }{
		{"physics", "high", ""}, {"art", "high", "ESLURM_INVALID_ACCOUNT"}, {"optics", "high", "ESLURM_INVALID_ACCOUNT"},
		{"physics", "low", "ESLURM_INVALID_QOS"}, {"physics", "normal", "ESLURM_INVALID_QOS"},
	} {
		got := ""
		if r := Admit(p, &job.Spec{Account: c.account, QOS: c.qos, NTasks: 1}, Who{UID: 1}, four()); r != nil {
			got = r.Code
		}
		if got != c.code {
			t.Errorf("%s %s: %q, want %q", c.account, c.qos, got, c.code)
		}
	}
}
