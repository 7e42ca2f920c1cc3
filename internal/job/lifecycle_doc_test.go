package job

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "rewrite generated files")

const lifecycleHead = `# A job's life

Generated from lifecycle.go by ` + "`go test ./internal/job -run LifecycleDocument -update`" + `.

A column is a phase: what a job's state and flags say together (PhaseOf). A cell is the state after the event ("=": the
same), flags set with + and cleared with -. An empty cell is refused: the event cannot happen then. The flags of one run
(CONFIGURING, STOPPED, SIGNALING, RESIZING, STAGE_OUT) are also cleared by each event that ends or requeues a run.

`

func TestLifecycleDocument(t *testing.T) {
	const file = "LIFECYCLE.md"
	want := lifecycleHead + LifecycleTable()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not current; run the command it names", file)
	}
}
