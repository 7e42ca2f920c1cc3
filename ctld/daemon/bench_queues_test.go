package daemon

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/logpb"
	"github.com/tensorgrid/tensorgrid/api/nodepb"
	"github.com/tensorgrid/tensorgrid/ctld/fsm"
	"github.com/tensorgrid/tensorgrid/internal/job"
)

// The shape of Kueue's own measurement: cohorts of queues with a quota of 20 each, of which one queue may borrow 100 more.
// Here a cohort is an account, a queue an account below it, and a quota its GrpTRES.
const (
	kueueCohorts = 10
	kueueQueues  = 100 // of a cohort
	kueueQuota   = 20  // CPUs of a queue
	kueueBorrow  = 100
	kueueRate    = 42.7 // admissions a second that are published for it
	kueueTimes   = 10.0 // how much faster we are to be
)

// kueueJobs is what each queue holds.
var kueueJobs = []struct {
	name     string
	count    int
	cpus     uint32
	lasts    time.Duration
	priority int
}{
	{"small", 35, 1, 150 * time.Millisecond, 50},
	{"medium", 11, 5, 350 * time.Millisecond, 100},
	{"large", 4, 20, 700 * time.Millisecond, 200},
}

// accounts makes the cohorts, the queues, one user for each, and a QOS for each kind of job.
func (c *simCluster) accounts() {
	c.Helper()
	change := func(verb, entity string, set ...string) {
		c.Helper()
		c.propose(&logpb.Command{Of: &logpb.Command_AccountingChange{AccountingChange: &logpb.AccountingChange{
			Verb: verb, Entity: entity, Set: set, Caller: &logpb.Caller{User: "root", Operator: true}}}})
	}
	qos := []string{"normal"}
	for _, k := range kueueJobs {
		change("add", "qos", "name", "=", k.name, "priority", "=", fmt.Sprint(k.priority))
		qos = append(qos, k.name)
	}
	for cohort := range kueueCohorts {
		name := fmt.Sprint("cohort", cohort)
		change("add", "account", "name", "=", name, "grptres", "=", fmt.Sprintf("cpu=%d", kueueQueues*kueueQuota), "qos", "=", strings.Join(qos, ","))
		for queue := range kueueQueues {
			account := queueName(cohort, queue)
			change("add", "account", "name", "=", account, "parent", "=", name, "grptres", "=", fmt.Sprintf("cpu=%d", kueueQuota+kueueBorrow))
			change("add", "user", "name", "=", "u"+account, "account", "=", account)
		}
	}
}

func queueName(cohort, queue int) string { return fmt.Sprintf("q%d_%d", cohort, queue) }

// fill queues the jobs, queue after queue, and gives how long each lasts.
func (c *simCluster) fill() (lasts map[uint32]time.Duration) {
	c.Helper()
	lasts = map[uint32]time.Duration{}
	for cohort := range kueueCohorts {
		for queue := range kueueQueues {
			account := queueName(cohort, queue)
			var cmds []*logpb.Command
			var each []time.Duration
			for _, k := range kueueJobs {
				for range k.count {
					spec := fsm.SpecToLog(&job.Spec{Script: []byte("#!/bin/sh\n"), UID: uint32(1000 + cohort*kueueQueues + queue), GID: 100,
						User: "u" + account, Account: account, QOS: k.name, WorkDir: "/tmp", Partition: "batch", NTasks: 1, CPUsPerTask: k.cpus, MinNodes: 1,
						TimeLimit: time.Minute.Milliseconds()})
					cmds, each = append(cmds, &logpb.Command{Of: &logpb.Command_Submit{Submit: &logpb.Submit{Spec: spec}}}), append(each, k.lasts)
				}
			}
			results, err := c.log.Propose(c.ctx, cmds...)
			if err != nil {
				c.Fatal(err)
			}
			for i, r := range results {
				if r.Refused != nil {
					c.Fatalf("job of %s: %s: %s", account, r.Refused.Code, r.Refused.Why)
				}
				lasts[r.JobID] = each[i]
			}
		}
	}
	return lasts
}

// TestBenchQueues measures admissions with 50,000 jobs waiting in 1,000 queues with quotas.
func TestBenchQueues(t *testing.T) {
	if !*benchSched {
		t.Skip("only with -bench-sched (make bench-sched)")
	}
	nodes := kueueCohorts * kueueQueues
	c := newSimCluster(t, simSetup{nodes: nodes, lines: []string{fmt.Sprintf("NodeName=s[1-%d] CPUs=%d RealMemory=80000", nodes, kueueQuota),
		"AccountingStorageEnforce=limits,qos", "PriorityType=priority/multifactor", "PriorityWeightQOS=1000", "PriorityWeightAge=10"}})
	c.accounts()
	lasts := c.fill()
	last := func(id uint32) time.Duration { return lasts[id] }
	c.lasts.Store(&last)
	rate := c.rate(len(lasts))
	for j := range c.log.View().Jobs() {
		if j.State != job.Completed {
			t.Fatalf("job %d is %v", j.ID, j.State)
		}
	}
	fmt.Printf("figure queues_kueue_published %.1f 1/s\nfigure queues_admissions %.0f 1/s\n", kueueRate, rate)
	schedFigure(t, "queues_of_kueue", rate/kueueRate, "x", ">=", kueueTimes)
}

// ends reports the end of runs when they have lasted as long as they do.
func (a *simAgent) ends(reports []*nodepb.Report) {
	for _, r := range reports {
		last := (*a.lasts.Load())(r.Key.JobId)
		if last < 0 {
			continue
		}
		time.AfterFunc(last, func() {
			r.EndMs = time.Now().UnixMilli()
			a.say(&nodepb.AgentMessage{Of: &nodepb.AgentMessage_Reports{Reports: &nodepb.Reports{Reports: []*nodepb.Report{r}}}})
		})
	}
}
