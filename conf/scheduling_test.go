package conf

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestIdleWords: a word of the scheduler's lists that nothing acts on is noted with its line, the others are not.
func TestIdleWords(t *testing.T) {
	for _, x := range []struct{ line, noted string }{
		{"SchedulerParameters=promises=8,backfill=shortest,max_sched_work=9,partition_work=3,estimates=corrected,bf_window=60", ""},
		{"SchedulerParameters=promises=8,bf_continue", "SchedulerParameters=bf_continue has no effect"},
		{"SchedulerParameters=promise=8", "SchedulerParameters=promise=8 has no effect"},
		{"PriorityFlags=MAX_TRES,INCR_ONLY", "PriorityFlags=INCR_ONLY has no effect"},
		{"PreemptParameters=youngest_first,send_user_signal,strict_order", "PreemptParameters=strict_order has no effect"},
		{"DependencyParameters=kill_invalid_depend,max_depend_depth=10", "DependencyParameters=max_depend_depth=10 has no effect"},
		{"AccountingStorageEnforce=limits,wckeys", "AccountingStorageEnforce=wckeys has no effect"},
		{"PreemptMode=SUSPEND,GANG", "PreemptMode=GANG has no effect"},
	} {
		path := filepath.Join(t.TempDir(), "grid.conf")
		if err := os.WriteFile(path, []byte("ClusterName=c\n\n"+x.line+"\nControllerName=c1 Address=127.0.0.1\nNodeName=n1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		if err != nil {
			t.Fatalf("%s: %v", x.line, err)
		}
		var noted []string
		for _, n := range c.Ignored {
			if strings.Contains(n.Text, "=") {
				noted = append(noted, n.String())
			}
		}
		var want []string
		if x.noted != "" {
			want = []string{path + ":3: " + x.noted}
		}
		if !slices.Equal(noted, want) {
			t.Errorf("%s: noted %q, want %q", x.line, noted, want)
		}
	}
}

// TestPreemptExemptTime: without one, or with 0, jobs are exempt for no time.
func TestPreemptExemptTime(t *testing.T) {
	for line, want := range map[string]string{"": "0 sec", "PreemptExemptTime=0": "0 sec", "PreemptExemptTime=2": "120 sec"} {
		path := filepath.Join(t.TempDir(), "grid.conf")
		if err := os.WriteFile(path, []byte("ClusterName=c\n"+line+"\nControllerName=c1 Address=127.0.0.1\nNodeName=n1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range c.Show() {
			if l.Key == "PreemptExemptTime" && l.Value != want {
				t.Errorf("%q is shown as %s", line, l.Value)
			}
		}
	}
}
