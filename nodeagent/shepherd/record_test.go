package shepherd

import (
	"bufio"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorgrid/tensorgrid/internal/job"
	"github.com/tensorgrid/tensorgrid/nodeagent/launch"
)

// leaving is a step that has ended, in a folder on a disk that takes nothing more.
func leaving(t *testing.T) (s *step, l *link, told func() *Record, room func()) {
	t.Helper()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=16k"); err != nil {
		t.Skip("needs root and a file system of its own:", err)
	}
	t.Cleanup(func() { unix.Unmount(disk, unix.MNT_DETACH) })
	folder := filepath.Join(disk, "step")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(disk+"/fill", make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	dir, err := openPlain(folder, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	agent, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { agent.Close() })
	ended := make(chan *Record, 64)
	go func() {
		conn, err := agent.Accept()
		if err != nil {
			return
		}
		for scan := bufio.NewScanner(conn); scan.Scan(); {
			var up Up
			if json.Unmarshal(scan.Bytes(), &up) == nil && up.Ended != nil {
				ended <- up.Ended
			}
		}
	}()
	l = newLink(agent.Addr().String(), Hello{PID: 7})
	t.Cleanup(l.hangUp)
	told = func() *Record {
		select {
		case r := <-ended:
			return r
		case <-time.After(10 * time.Second):
			t.Fatal("the agent was told nothing")
			return nil
		}
	}
	s = &step{plan: &launch.Plan{StepDir: folder}, dir: dir}
	return s, l, told, func() { os.Remove(disk + "/fill") }
}

func TestRecordIsToldAndTriedAgainWhileTheDiskIsFull(t *testing.T) {
	s, l, told, room := leaving(t)
	want := Record{Key: launch.Key{Job: 7, Step: job.BatchStep}, ExitCode: 3, End: 9}
	left := make(chan bool)
	go func() { left <- s.leave(l, &want) }()
	if got := told(); *got != want {
		t.Errorf("told %+v", *got)
	}
	told() // each time: an agent that was started anew hears it too
	room()
	if !<-left {
		t.Error("taken for released")
	}
	data, err := os.ReadFile(filepath.Join(s.plan.StepDir, RecordFile))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseRecord(data); err != nil || *got != want {
		t.Errorf("got %+v %v", got, err)
	}
}

func TestRecordOfAReleasedStepIsNotTriedAgain(t *testing.T) {
	s, l, told, _ := leaving(t)
	left := make(chan bool)
	go func() { left <- s.leave(l, &Record{ExitCode: 3}) }()
	told()
	if err := os.RemoveAll(s.plan.StepDir); err != nil {
		t.Fatal(err)
	}
	if <-left {
		t.Error("a record was left where no folder is")
	}
}
