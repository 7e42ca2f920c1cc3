package leader

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tensorgrid/tensorgrid/conf"
)

// TestCheckConfig: a word of the scheduler's that cannot be read is told of when the file is loaded.
func TestCheckConfig(t *testing.T) {
	for words, want := range map[string]string{
		"SchedulerParameters=promises=8,backfill=shortest\nPreemptMode=REQUEUE,WITHIN\nPriorityWeightTRES=CPU=10,Mem=5": "",
		"SchedulerParameters=promises=many":                 "promises=many",
		"SchedulerParameters=backfill=none":                 "none of priority",
		"PriorityWeightTRES=CPU=ten":                        "CPU=ten",
		"PreemptParameters=min_exempt_priority=high":        "high",
		"PartitionName=p Nodes=n1 TRESBillingWeights=CPU=x": "partition p: TRESBillingWeights",
	} {
		path := filepath.Join(t.TempDir(), "grid.conf")
		if err := os.WriteFile(path, []byte("ClusterName=c\nControllerName=c1 Address=127.0.0.1\nNodeName=n1\n"+words+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := conf.Load(path)
		if err != nil {
			t.Fatalf("%s: %v", words, err)
		}
		err = CheckConfig(c)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", words, err)
		}
	}
}
