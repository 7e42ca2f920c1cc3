package trace

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const header = "; MaxProcs: 8\n"

func swf(job, submit, run, alloc, req, limit string) string {
	return strings.Join([]string{job, submit, "-1", run, alloc, "-1", "-1", req, limit, "-1", "1", "7", "-1", "-1", "-1", "-1", "-1", "-1"}, " ") + "\n"
}

func TestReadSWF(t *testing.T) {
	in := header +
		swf("1", "0", "50", "4", "-1", "60") + // requested not told
		swf("2", "5", "70", "2", "3", "60") + // longer than asked, requested counts
		swf("3", "6", "10", "9", "8", "60") + // more than there is
		swf("4", "7", "0", "1", "1", "60") + // did not run
		swf("5", "8", "10", "-1", "-1", "60") + // no size
		swf("6", "3", "10", "-1", "1", "60") // out of order
	tr, err := ReadSWF("t", strings.NewReader(in), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Job{
		{ID: 1, Submit: 0, Run: 50000, Limit: 60000, Tasks: 4, CPUs: 1, User: "7"},
		{ID: 6, Submit: 3000, Run: 10000, Limit: 60000, Tasks: 1, CPUs: 1, User: "7"},
		{ID: 2, Submit: 5000, Run: 60000, Limit: 60000, Tasks: 3, CPUs: 1, User: "7"},
	}
	if len(tr.Jobs) != len(want) || tr.Dropped != 3 || tr.CPUs() != 8 {
		t.Fatalf("%d jobs, %d dropped, %d CPUs: %+v", len(tr.Jobs), tr.Dropped, tr.CPUs(), tr.Jobs)
	}
	for i := range want {
		if tr.Jobs[i] != want[i] {
			t.Errorf("job %d is %+v, want %+v", i, tr.Jobs[i], want[i])
		}
	}
	if p := tr.Perfect(); p.Jobs[0].Limit != 50000 || tr.Jobs[0].Limit != 60000 {
		t.Error("Perfect must change a copy")
	}
}

func TestReadSWFWithoutTimes(t *testing.T) {
	tr, err := ReadSWF("t", strings.NewReader(header+swf("1", "0", "50", "4", "-1", "-1")), 0)
	if err != nil || len(tr.Jobs) != 1 || tr.Jobs[0].Limit != 50000 || len(tr.Notes) != 1 {
		t.Fatal(tr, err)
	}
}

func TestReadSWFErrors(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{swf("1", "0", "1", "1", "1", "1"), "MaxProcs"},
		{header + "1 2 3\n", "t:2: 3 columns"},
		{header + swf("1", "x", "1", "1", "1", "1"), `column 2: "x"`},
		{header + swf("1", "-4", "1", "1", "1", "1"), "submitted at -4"},
		{header + swf("1", "1", "1e99", "1", "1", "1"), `"1e99"`},
	} {
		if _, err := ReadSWF("t", strings.NewReader(c.in), 0); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.in, err, c.want)
		}
	}
}

func TestReadOpenb(t *testing.T) {
	nodes := "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,1024,2,T4\n"
	pods := "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n" +
		"a,1500,10,1,500,,LS,Running,10,20,\nb,9000,10,0,0,,LS,Running,10,20,\nc,100,10,2,1000,,LS,Running,4,5,5\n"
	tr, err := ReadOpenb("t", strings.NewReader(nodes), strings.NewReader(pods))
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.Jobs) != 2 || tr.Dropped != 1 || tr.Jobs[0].ID != 3 || tr.Jobs[1] != (Job{ID: 1, Submit: 10000, Run: 10000, Limit: 10000, Tasks: 1, CPUs: 2, Mem: 10 << 20, GPUs: 1}) {
		t.Fatalf("%+v", tr)
	}
	if tr.GPUs() != 2 || len(tr.Notes) != 1 {
		t.Error(tr.GPUs(), tr.Notes)
	}
	if _, err := ReadOpenb("t", strings.NewReader("sn,cpu\n"), strings.NewReader(pods)); err == nil || !strings.Contains(err.Error(), "no column cpu_milli") {
		t.Error(err)
	}
	if _, err := ReadOpenb("t", strings.NewReader(nodes), strings.NewReader(strings.Replace(pods, "1500", "x", 1))); err == nil || !strings.Contains(err.Error(), `pods:2: cpu_milli: "x"`) {
		t.Error(err)
	}
}

func TestOpenbFiles(t *testing.T) {
	dir := "../../../../shared/traces"
	nodes, err := os.ReadFile(filepath.Join(dir, "openb_node_list_gpu_node.csv"))
	if err != nil {
		t.Skip("skipped: the published traces are not in ../shared/traces")
	}
	pods, err := os.ReadFile(filepath.Join(dir, "openb_pod_list_default.csv"))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := ReadOpenb("default", bytes.NewReader(nodes), bytes.NewReader(pods))
	if err != nil || len(tr.Nodes) != 1213 || tr.GPUs() != 6212 {
		t.Fatal(len(tr.Nodes), tr.GPUs(), err)
	}
	t.Logf("%d jobs, %d dropped, %v", len(tr.Jobs), tr.Dropped, tr.Notes)
}

func FuzzReadSWF(f *testing.F) {
	f.Add(header + swf("1", "0", "50", "4", "-1", "60"))
	f.Fuzz(func(t *testing.T, in string) {
		tr, err := ReadSWF("t", strings.NewReader(in), 0)
		if err != nil {
			return
		}
		for _, j := range tr.Jobs {
			if j.Run < 1 || j.Limit < j.Run || uint64(j.Tasks) > tr.CPUs() || j.Submit < 0 {
				t.Fatalf("%+v", j)
			}
		}
	})
}

func FuzzReadOpenb(f *testing.F) {
	f.Add("sn,cpu_milli,memory_mib,gpu,model\nn0,8000,1024,2,T4\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\na,1500,10,1,500,10,20\n")
	f.Fuzz(func(t *testing.T, nodes, pods string) {
		tr, err := ReadOpenb("t", strings.NewReader(nodes), strings.NewReader(pods))
		if err != nil {
			return
		}
		for _, j := range tr.Jobs {
			if j.Run < 1 || j.CPUs < 1 {
				t.Fatalf("%+v", j)
			}
		}
	})
}
