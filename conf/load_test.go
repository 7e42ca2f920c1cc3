package conf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write puts text into a file of that name in a fresh folder.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const good = `
# a small cluster
ClusterName=lab KillWait=5
ControllerName=c1 Address=127.0.0.1
NodeName=DEFAULT RealMemory=4096 \
   CPUs=8 ThreadsPerCore=2
NodeName=gpu[01-03] Gres=gpu:a100:4 Features=fast,"big mem" # the good ones
NodeName=cpu1 CPUs=4 Weight=5
PartitionName=DEFAULT MaxTime=2-0 DefaultTime=60
PartitionName=gpu Nodes=gpu[01-03] Default=YES
PartitionName=all Nodes=ALL State=DOWN maxtime=UNLIMITED SharedFS=no
`

func TestLoad(t *testing.T) {
	c, err := Load(write(t, "grid.conf", good))
	if err != nil {
		t.Fatal(err)
	}
	if c.ClusterName != "lab" || c.KillWait != 5*time.Second || c.MaxArraySize != 1001 || c.MinJobAge != 24*time.Hour {
		t.Errorf("top keys: %+v", c)
	}
	if len(c.Nodes) != 4 || c.Nodes[1].Name != "gpu02" || c.Nodes[1].RealMemory != 4<<30 || c.Nodes[1].Sockets != 4 {
		t.Errorf("nodes: %+v", c.Nodes)
	}
	if n := c.Node("gpu03"); n == nil || strings.Join(n.Features, "|") != "fast|big mem" || n.Address != "gpu03" {
		t.Errorf("gpu03: %+v", n)
	}
	if n := c.Node("cpu1"); n == nil || n.CPUs != 4 || n.Weight != 5 {
		t.Errorf("cpu1: %+v", n)
	}
	g, a := c.Partitions[0], c.Partitions[1]
	if !g.Default || g.MaxTime != 2*86400e3 || g.DefaultTime != 3600e3 || !g.SharedFS || len(g.Nodes) != 3 {
		t.Errorf("partition gpu: %+v", g)
	}
	if a.MaxTime != -1 || a.State != "DOWN" || a.SharedFS || len(a.Nodes) != 4 {
		t.Errorf("partition all: %+v", a)
	}
	if c.Controllers[0].Socket != "/run/tensorgrid/c1.sock" || c.Controllers[0].Port != 6817 {
		t.Errorf("controller: %+v", c.Controllers[0])
	}
}

// TestProblems: all at once, each with its line and with what would be right.
func TestProblems(t *testing.T) {
	path := write(t, "grid.conf", `ClusterName=lab
KillWiat=5
KillWait=soon
ControllerName=c1
ControllerName=c2
NodeName=n[3-1] CPUs=1
NodeName=n1 CPUs=x
NodeName=n1 CPUs=1
PartitionName=p Nodes=n1,n9 State=SIDEWAYS
PartitionName=q Nodes=n1 MaxTime=2982617-00:00:00
just words
Include nowhere.conf
MaxArraySize=5000000
`)
	_, err := Load(path)
	var p Problems
	if !errors.As(err, &p) {
		t.Fatalf("err = %v, want Problems", err)
	}
	for _, want := range []string{
		":2: KillWiat is no known key; did you mean KillWait?",
		":3: KillWait=soon: a number of seconds",
		":6: NodeName=n[3-1]: ",
		":7: CPUs=x: a whole number",
		":8: node n1 is on line 7",
		":9: State=SIDEWAYS: one of UP, DOWN, DRAIN, INACTIVE",
		":9: partition p: node n9 is on no NodeName line",
		":10: MaxTime=2982617-00:00:00: ",
		`:11: "just" is no Key=Value`,
		":12: Include: ",
		"MaxArraySize=5000000: at most 4000001",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no problem has %q in\n%v", want, err)
		}
	}
}

// TestSlurmConf: a site's file loads; what has no meaning is listed with its line.
func TestSlurmConf(t *testing.T) {
	path := write(t, "slurm.conf", `ClusterName=site
SlurmctldHost=head(10.0.0.1)
SlurmctldPort=6820-6823
SlurmUser=slurm
StateSaveLocation=/var/spool/slurmctld
AuthType=auth/munge
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobCompType=jobcomp/none
NoSuchKeyAtAll=1
SlurmctldHost=backup
DefMemPerCPU=1500
MailProg=/usr/bin/mail
NodeName=node[1-4] CPUs=64 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 RealMemory=250000 State=UNKNOWN Feature=a100
DownNodes=node4 State=DOWN
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP DefMemPerCPU=2000 QOS=normal
PartitionName=other Nodes=node1
`)
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Controllers[0].Name != "head" || c.Controllers[0].Address != "10.0.0.1" || c.Controllers[0].Port != 6820 {
		t.Errorf("controller: %+v", c.Controllers[0])
	}
	if c.Nodes[3].Features[0] != "a100" || c.Partitions[0].MaxTime != -1 || c.Partitions[0].DefMemPerCPU != 2000<<20 || c.Partitions[1].DefMemPerCPU != 1500<<20 || len(c.Controllers) != 1 {
		t.Errorf("nodes %+v\npartitions %+v", c.Nodes[3], c.Partitions)
	}
	var got []string
	for _, n := range c.Ignored {
		got = append(got, n.String())
	}
	for _, want := range []string{":4: SlurmUser", ":6: AuthType", ":10: NoSuchKeyAtAll", ":15: DownNodes", "SlurmctldHost=backup has no effect"} {
		if !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("nothing ignored has %q in\n%s", want, strings.Join(got, "\n"))
		}
	}
}

func TestInclude(t *testing.T) {
	dir := t.TempDir()
	os.WriteFile(filepath.Join(dir, "grid.conf"), []byte("ClusterName=x\nControllerName=c\nInclude nodes.conf\n"), 0o644)
	os.WriteFile(filepath.Join(dir, "nodes.conf"), []byte("NodeName=n CPUs=2\nNodeName=m CPUs=bad\n"), 0o644)
	_, err := Load(filepath.Join(dir, "grid.conf"))
	if err == nil || !strings.Contains(err.Error(), "nodes.conf:2: CPUs=bad") {
		t.Errorf("err = %v", err)
	}
	os.WriteFile(filepath.Join(dir, "nodes.conf"), []byte("Include grid.conf\n"), 0o644)
	_, err = Load(filepath.Join(dir, "grid.conf"))
	if err == nil || !strings.Contains(err.Error(), "more than 10 files inside each other") {
		t.Errorf("loop: err = %v", err)
	}
}

// TestLimits: one over each limit is refused with the limit named.
func TestLimits(t *testing.T) {
	long := strings.Repeat("x", maxLine+1)
	for name, c := range map[string]struct{ text, want string }{
		"line":  {"ClusterName=" + long, "longer than 1048576 bytes"},
		"value": {"Prolog=/" + strings.Repeat("x", maxValue), "4097 bytes, the limit is 4096"},
		"list":  {"Operators=" + strings.Repeat("a,", maxList/2) + "b", "65537 bytes, the limit is 65536"},
		"name":  {"ClusterName=" + strings.Repeat("x", 41), "at most 40"},
		"time":  {"KillWait=999999999999", "at most"},
		"mem":   {"NodeName=n RealMemory=99999999999999999", "a number of MiB"},
	} {
		if _, err := Load(write(t, "grid.conf", c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: err = %.200v, want %q", name, err, c.want)
		}
	}
}

func TestDiff(t *testing.T) {
	a, err := Load(write(t, "grid.conf", good))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("KillWait=5", "KillWait=10 RaftTimeout=250ms", "gpu[01-03]", "gpu[01-04]", "Weight=5", "Weight=6").Replace(good)
	b, err := Load(write(t, "grid.conf", text))
	if err != nil {
		t.Fatal(err)
	}
	applied, restart := Diff(a, b)
	if got := strings.Join(applied, "; "); got != "KillWait 5 sec -> 10 sec; node cpu1: Weight 5 -> 6; node gpu04 added; "+
		"partition all: Nodes gpu01,gpu02,gpu03,cpu1 -> gpu01,gpu02,gpu03,gpu04,cpu1; partition gpu: Nodes gpu01,gpu02,gpu03 -> gpu01,gpu02,gpu03,gpu04" {
		t.Errorf("applied: %s", got)
	}
	if got := strings.Join(restart, "; "); got != "RaftTimeout 500 ms -> 250 ms" {
		t.Errorf("restart: %s", got)
	}
	if first := a.Digest(); first == b.Digest() || first != a.Digest() {
		t.Error("digest")
	}
}

// TestEncoding: what is not UTF-8 could not go into the log; in a comment it does no harm.
func TestEncoding(t *testing.T) {
	_, err := Load(write(t, "grid.conf", good+"# fran\xe7ais\nNodeName=d1 Reason=\"d\xe9faut\"\nNodeName=d2 Reason=\"d\u00e9faut\"\n"))
	var p Problems
	if !errors.As(err, &p) || len(p) != 1 || !strings.Contains(err.Error(), `:13: byte 0xe9 after "odeName=d1 Reason=\"d" is not UTF-8`) {
		t.Errorf("err = %v", err)
	}
}

// TestTimeouts: 0 never calls a silent node down; a launch needs some time.
func TestTimeouts(t *testing.T) {
	if c, err := Load(write(t, "grid.conf", good+"SlurmdTimeout=0\n")); err != nil || c.SlurmdTimeout != 0 {
		t.Errorf("%v", err)
	}
	if _, err := Load(write(t, "grid.conf", good+"LaunchTimeout=0\n")); err == nil || !strings.Contains(err.Error(), "LaunchTimeout must be over 0") {
		t.Errorf("err = %v", err)
	}
}

// TestLoadFront: a user's command works while an administrator edits the rest of the file.
func TestLoadFront(t *testing.T) {
	f, err := LoadFront(write(t, "grid.conf", good+"KillWait=soon\njust words\nNodeName=n[9-1]\nTLSDir=/x/tls\n"))
	if err != nil || f.Cluster != "lab" || len(f.Controllers) != 1 || f.Controllers[0].Socket != "/run/tensorgrid/c1.sock" ||
		f.TLSDir != "/x/tls" || f.LoginSocket != "/run/tensorgrid/login.sock" {
		t.Errorf("%+v %v", f, err)
	}
	if _, err := LoadFront(write(t, "grid.conf", "NodeName=n1\n")); err == nil || !strings.Contains(err.Error(), "ClusterName is missing") ||
		!strings.Contains(err.Error(), "no ControllerName line") {
		t.Errorf("err = %v", err)
	}
	if f, err := LoadFront(write(t, "slurm.conf", "ClusterName=x\nSlurmctldHost=a(10.0.0.1)\nSlurmctldPort=7000\n")); err != nil || f.Controllers[0].Port != 7000 {
		t.Errorf("%+v %v", f, err)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(good)
	f.Add("A=\"b c\" d=e\\\nf=g # h\nInclude x\n")
	f.Add("NodeName=n[1-3]suffix NodeAddr=a[1-3]\nPartitionName=p Nodes+=n1")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), "grid.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Skip("cannot write the input")
		}
		c, err := Load(path)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v with error %v", c, err)
		}
		LoadFront(path)
	})
}

// TestDigestOfHosts: files that differ in what a daemon reads at its start alone are one file for the cluster,
// or a controller whose certificates lie elsewhere would not follow when another takes Admins anew.
func TestDigestOfHosts(t *testing.T) {
	digest := func(more string) string {
		t.Helper()
		c, err := Load(write(t, "grid.conf", "ClusterName=lab\nControllerName=c1\nNodeName=n1\n"+more+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest()
	}
	same := digest("")
	for _, line := range []string{"TLSDir=/other", "AuditLog=/other/%c", "IssuerKey=/other/ca.key", "StateReserve=1G", "LoginSocket=/x"} {
		if digest(line) != same {
			t.Errorf("%s changes the digest", line)
		}
	}
	for _, line := range []string{"Admins=ann", "Operators=ann", "LoginNodes=l1", "KillWait=1", "FenceProgram=/x", "CertLife=1h", "JobLease=5m"} {
		if digest(line) == same {
			t.Errorf("%s does not change the digest", line)
		}
	}
	if digest("PartitionName=p Nodes=n1") == same {
		t.Error("a partition does not change the digest")
	}
}
