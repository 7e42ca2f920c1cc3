package discover

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
)

func files(m map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range m {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

// topology makes the /sys tree of a host: sockets x cores x threads, numbered as Linux on x86 does.
func topology(sockets, cores, threads int) fstest.MapFS {
	m := map[string]string{"devices/system/cpu/online": fmt.Sprintf("0-%d\n", sockets*cores*threads-1)}
	id := 0
	for range threads {
		for s := range sockets {
			for c := range cores {
				dir := fmt.Sprintf("devices/system/cpu/cpu%d/topology/", id)
				m[dir+"physical_package_id"] = fmt.Sprintln(s)
				m[dir+"core_id"] = fmt.Sprintln(c * 4) // core ids have holes on real hosts
				id++
			}
		}
	}
	return files(m)
}

func TestCPUs(t *testing.T) {
	cpuinfo := files(map[string]string{"cpuinfo": "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\nprocessor\t: 2\n"})
	for _, tc := range []struct {
		name string
		host Host
		want CPUs
		err  string
	}{
		{"two sockets with threads", Host{Sys: topology(2, 8, 2)}, CPUs{32, 1, 2, 8, 2}, ""},
		{"one core", Host{Sys: topology(1, 1, 1)}, CPUs{1, 1, 1, 1, 1}, ""},
		{"cpuinfo only", Host{Proc: cpuinfo, Sys: files(nil)}, CPUs{3, 1, 1, 3, 1}, ""},
		{"list without topology", Host{Sys: files(map[string]string{"devices/system/cpu/online": "0,2-3"})}, CPUs{3, 1, 1, 3, 1}, ""},
		{"at the limit", Host{Sys: files(map[string]string{"devices/system/cpu/online": "0-8191"})}, CPUs{8192, 1, 1, 8192, 1}, ""},
		{"limit + 1", Host{Sys: files(map[string]string{"devices/system/cpu/online": "0-8192"})}, CPUs{}, "limit of 8192"},
		{"list reversed", Host{Sys: files(map[string]string{"devices/system/cpu/online": "3-0"})}, CPUs{}, "no range"},
		{"nothing", Host{Proc: files(nil), Sys: files(nil)}, CPUs{}, "cpuinfo"},
		{"cpuinfo without processors", Host{Proc: files(map[string]string{"cpuinfo": "vendor : x\n"}), Sys: files(nil)}, CPUs{}, "no processor"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := tc.host.CPUs()
			checkErr(t, err, tc.err)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func checkErr(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("unexpected error: %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Fatalf("error %v, want one with %q", err, want)
	}
}

func TestMemory(t *testing.T) {
	for _, tc := range []struct {
		name, text    string
		total, usable int64
		err           string
	}{
		{"usual", "MemTotal:       16 kB\nMemFree: 4 kB\nMemAvailable:  8 kB\n", 16 << 10, 8 << 10, ""},
		{"old kernel", "MemTotal: 16 kB\nMemFree: 4 kB\n", 16 << 10, 4 << 10, ""},
		{"no total", "MemFree: 4 kB\n", 0, 0, "MemTotal"},
		{"absurd", "MemTotal: 99999999999999999 kB\n", 0, 0, "MemTotal"},
		{"unit missing", "MemTotal: 16\n", 0, 0, "MemTotal"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			total, usable, err := Host{Proc: files(map[string]string{"meminfo": tc.text})}.Memory()
			checkErr(t, err, tc.err)
			if err == nil && (total != tc.total || usable != tc.usable) {
				t.Errorf("got %d %d, want %d %d", total, usable, tc.total, tc.usable)
			}
		})
	}
}

func TestHostFacts(t *testing.T) {
	h := Host{Proc: files(map[string]string{
		"loadavg":                   "0.25 0.10 0.05 1/200 4242\n",
		"sys/kernel/random/boot_id": "01234567-89ab-cdef-0123-456789abcdef\n",
		"stat":                      "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n",
	})}
	if load, err := h.Load(); err != nil || load != 0.25 {
		t.Errorf("load %v %v", load, err)
	}
	if id, err := h.BootID(); err != nil || id != "01234567-89ab-cdef-0123-456789abcdef" {
		t.Errorf("boot id %q %v", id, err)
	}
	if ms, err := h.BootTime(); err != nil || ms != 1700000000000 {
		t.Errorf("boot time %d %v", ms, err)
	}
	bad := Host{Proc: files(map[string]string{"loadavg": "x", "sys/kernel/random/boot_id": "short", "stat": "cpu 1\n"})}
	if _, err := bad.Load(); err == nil {
		t.Error("a load that is no number was taken")
	}
	if _, err := bad.BootID(); err == nil {
		t.Error("a short boot id was taken")
	}
	if _, err := bad.BootTime(); err == nil {
		t.Error("a stat without btime was taken")
	}
}

func TestFileLimit(t *testing.T) {
	h := Host{Proc: fstest.MapFS{"meminfo": &fstest.MapFile{Data: make([]byte, maxFile+1)}}}
	_, _, err := h.Memory()
	checkErr(t, err, "over the limit of 8388608 bytes")
}

func TestLocalHost(t *testing.T) {
	h := Local()
	c, err := h.CPUs()
	if err != nil || c.Count == 0 || c.Sockets*c.CoresPerSocket*c.ThreadsPerCore > c.Count {
		t.Errorf("cpus %+v %v", c, err)
	}
	if total, usable, err := h.Memory(); err != nil || usable > total || total == 0 {
		t.Errorf("memory %d %d %v", total, usable, err)
	}
	if size, err := Disk(t.TempDir()); err != nil || size <= 0 {
		t.Errorf("disk %d %v", size, err)
	}
	if kernel, arch, err := System(); err != nil || !strings.HasPrefix(kernel, "Linux ") || arch == "" {
		t.Errorf("system %q %q %v", kernel, arch, err)
	}
	if _, err := Disk("/does/not/exist"); err == nil {
		t.Error("a missing path has a size")
	}
}

func TestParseMode(t *testing.T) {
	for in, want := range map[string]Mode{"": Off, "off": Off, "Off": Off, "sim": Sim} {
		if got, err := ParseMode(in); err != nil || got != want {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
	if _, err := ParseMode("nvml"); !errors.Is(err, ErrNoNVML) {
		t.Errorf("nvml: %v", err)
	}
	if _, err := ParseMode("rsmi"); err == nil {
		t.Error("rsmi was taken")
	}
}

func TestGres(t *testing.T) {
	two := []Device{{Index: 0, Type: "rtx4090"}, {Index: 1, Type: "rtx3090"}, {Index: 2, Type: "rtx4090"}}
	for _, tc := range []struct {
		name, conf string
		devices    []Device
		want       string
	}{
		{"configured only", "gpu:a100:4,shard:16", nil, "gpu:a100:4,shard:16"},
		{"devices replace configured gpus", "gpu:a100:4,shard:16", two, "gpu:rtx4090:2,gpu:rtx3090:1,shard:16"},
		{"nothing configured", "", two, "gpu:rtx4090:2,gpu:rtx3090:1"},
		{"a name that starts alike stays", "gpuslots:2", two, "gpu:rtx4090:2,gpu:rtx3090:1,gpuslots:2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Gres(tc.conf, tc.devices); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	var many []Device
	for i := range MaxDevices + 1 {
		many = append(many, Device{Index: uint32(i), UUID: fmt.Sprint(i)})
	}
	checkErr(t, Check(many[:MaxDevices]), "")
	checkErr(t, Check(many), "limit of 64")
	checkErr(t, Check([]Device{{Index: 1}}), "in place 0")
	checkErr(t, Check([]Device{{Index: 0, UUID: "a"}, {Index: 1, UUID: "a"}}), "twice")
}

func FuzzParseCPUList(f *testing.F) {
	for _, s := range []string{"0-3,8", "", "0", "3-0", "0-4294967295", "1,,2", "0-", "-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ids, err := parseCPUList(s)
		if err == nil && (len(ids) == 0 || len(ids) > MaxCPUs) {
			t.Errorf("%q gave %d processors", s, len(ids))
		}
	})
}
