package robust

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// user is somebody who calls the controllers on their local sockets.
type user struct {
	c   *cluster
	uid uint32

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
	next  int
}

// user gives the one of that uid.
func (c *cluster) user(uid uint32) *user {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.users[uid]
	if u == nil {
		u = &user{c: c, uid: uid, conns: map[string]*grpc.ClientConn{}}
		c.users[uid] = u
	}
	return u
}

// connectAs connects to a socket under another uid: the kernel notes the ids of the thread that
// connects, so one thread is that user for as long as it takes.
func connectAs(ctx context.Context, uid uint32, path string) (net.Conn, error) {
	var d net.Dialer
	if uid == 0 {
		return d.DialContext(ctx, "unix", path)
	}
	runtime.LockOSThread()
	none := ^uintptr(0)
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, none, uintptr(uid), none); e != 0 {
		runtime.UnlockOSThread()
		return nil, e
	}
	conn, err := d.DialContext(ctx, "unix", path)
	if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, none, 0, none); e != 0 {
		panic("setresuid: " + e.Error()) // the thread would go on as somebody else
	}
	runtime.UnlockOSThread()
	return conn, err
}

// at talks to one controller; a connection that broke is made again at the next call.
func (u *user) at(name string) ctldpb.ControllerClient {
	u.mu.Lock()
	defer u.mu.Unlock()
	conn := u.conns[name]
	if conn == nil {
		path := u.c.path("run", name+".sock")
		var err error
		conn, err = grpc.NewClient("passthrough:///"+name, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connectAs(ctx, u.uid, path) }),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.3, MaxDelay: 50 * time.Millisecond},
				MinConnectTimeout: time.Second,
			}))
		if err != nil {
			u.c.t.Fatal(err)
		}
		u.conns[name] = conn
	}
	return ctldpb.NewControllerClient(conn)
}

// any talks to the controllers in turn, those that run.
func (u *user) any() ctldpb.ControllerClient {
	up := u.c.up()
	u.mu.Lock()
	u.next++
	i := u.next
	u.mu.Unlock()
	return u.at(up[i%len(up)])
}

// up lists the controllers whose process is there; the first when there is none.
func (c *cluster) up() (up []string) {
	for _, n := range c.names {
		if c.proc[n].alive() {
			up = append(up, n)
		}
	}
	if len(up) == 0 {
		return c.names[:1]
	}
	return up
}

func (u *user) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.conns {
		c.Close()
	}
	clear(u.conns)
}

// jobs reads the list at one controller.
func (u *user) jobs(ctx context.Context, at string, req *ctldpb.ListJobsRequest) (*ctldpb.ListJobsResponse, error) {
	cc := u.any()
	if at != "" {
		cc = u.at(at)
	}
	stream, err := cc.ListJobs(ctx, req)
	if err != nil {
		return nil, err
	}
	all := &ctldpb.ListJobsResponse{}
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if page.Info != nil {
			all.Info = page.Info
		}
		all.Jobs = append(all.Jobs, page.Jobs...)
		all.UnknownIds = append(all.UnknownIds, page.UnknownIds...)
	}
}

// allJobs is every job there is, by name; it asks until somebody answers.
func (c *cluster) allJobs() map[string]*ctldpb.Job {
	c.t.Helper()
	out := map[string]*ctldpb.Job{}
	within(c.t, time.Minute, "the list of jobs", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		list, err := c.user(0).jobs(ctx, "", &ctldpb.ListJobsRequest{States: []string{"all"}})
		if err != nil {
			return err
		}
		clear(out)
		for _, j := range list.Jobs {
			if old := out[j.Spec.Name]; old != nil {
				c.t.Errorf("job %q is there twice: as %d and as %d", j.Spec.Name, old.JobId, j.JobId)
			}
			out[j.Spec.Name] = j
		}
		return nil
	})
	return out
}

// script is a job that notes on the shared disk what really runs. A copy holds a lock for as long as any
// process of it lives, so a second copy that starts meanwhile sees that, and says so.
func (c *cluster) script(body string) []byte {
	return fmt.Appendf(nil, `#!/bin/sh
f=%s/$SLURM_JOB_NAME
exec 9>>$f.lock
/usr/bin/flock -n 9 || echo "overlap $SLURM_JOB_ID $GRID_JOB_RUN $$ 0" >> $f
read now idle < /proc/uptime
echo "start $SLURM_JOB_ID $GRID_JOB_RUN $$ $now $SLURMD_NODENAME" >> $f
%s
code=$?
read now idle < /proc/uptime
echo "end $SLURM_JOB_ID $GRID_JOB_RUN $$ $now" >> $f
exit $code
`, c.path("work", "jobs"), body)
}

// spec is a small job of that name.
func (c *cluster) spec(name, body string) *ctldpb.JobSpec {
	return &ctldpb.JobSpec{Name: name, WorkDir: c.path("work"), StdOut: "/dev/null", Script: c.script(body), Ntasks: 1,
		MemPerNode: 1 << 20, TimeLimitMs: time.Hour.Milliseconds()}
}

// submit gives a job's id; it repeats under one key until somebody answers.
func (c *cluster) submit(spec *ctldpb.JobSpec) uint32 {
	c.t.Helper()
	var id uint32
	within(c.t, time.Minute, "submission of "+spec.Name, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		res, err := c.user(userUID).any().Submit(ctx, &ctldpb.SubmitRequest{Key: spec.Name, Spec: spec})
		if err != nil && !unavailable(err) {
			c.t.Fatalf("submission of %s: %v", spec.Name, err)
		}
		id = res.GetJobId()
		return err
	})
	return id
}

// event is one line of a job's file.
type event struct {
	what     string
	job, run uint32
	pid      int
	at       float64 // seconds of CLOCK_BOOTTIME
	node     string
}

// events reads what a job's copies have written.
func (c *cluster) events(name string) []event {
	data, err := os.ReadFile(c.path("work", "jobs", name))
	if err != nil {
		return nil
	}
	var out []event
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			c.t.Errorf("job %s: line %q", name, line)
			continue
		}
		e := event{what: f[0]}
		id, _ := strconv.ParseUint(f[1], 10, 32)
		run, _ := strconv.ParseUint(f[2], 10, 32)
		e.job, e.run = uint32(id), uint32(run)
		e.pid, _ = strconv.Atoi(f[3])
		e.at, _ = strconv.ParseFloat(f[4], 64)
		if len(f) > 5 {
			e.node = f[5]
		}
		out = append(out, e)
	}
	return out
}

// names lists the jobs that have written anything.
func (c *cluster) ran() []string {
	files, _ := filepath.Glob(c.path("work", "jobs", "*"))
	var out []string
	for _, f := range files {
		if !strings.HasSuffix(f, ".lock") {
			out = append(out, filepath.Base(f))
		}
	}
	return out
}

// counts is what checkRan has looked at.
type counts struct{ jobs, starts, ends int }

// edge is a moment at which a job began (1) or ended (-1) on a node.
type edge struct {
	at    float64
	count int
}

// peak is how many ran at a time at most; at the same hundredth of a second an end counts first.
func peak(edges []edge) (most int) {
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.count, b.count)) })
	n := 0
	for _, e := range edges {
		n += e.count
		most = max(most, n)
	}
	return most
}

// checkRan holds what really ran against the promises: no two copies of a job alive at a time, nothing
// started twice in one run, no processor of a node given twice, and what is COMPLETED has come to its end.
func (c *cluster) checkRan(jobs map[string]*ctldpb.Job) (n counts) {
	c.t.Helper()
	busy := map[string][]edge{}
	for _, name := range c.ran() {
		n.jobs++
		began := map[uint32]event{}
		j := jobs[name]
		if j == nil {
			c.t.Errorf("job %s ran, and the controllers do not know it", name)
		}
		starts, last := map[uint32]int{}, map[uint32]float64{}
		ended := map[uint32]bool{}
		for _, e := range c.events(name) {
			switch e.what {
			case "overlap":
				c.t.Errorf("job %s (%d): a copy was alive when run %d started", name, e.job, e.run)
			case "start":
				n.starts++
				began[e.run] = e
				if starts[e.run]++; starts[e.run] > 1 {
					c.t.Errorf("job %s (%d): started %d times in run %d", name, e.job, starts[e.run], e.run)
				}
				for run, at := range last {
					if run != e.run && ended[run] && e.at < at {
						c.t.Errorf("job %s (%d): run %d started at %.2f, run %d ended at %.2f", name, e.job, e.run, e.at, run, at)
					}
				}
			case "end":
				n.ends++
				if b, ok := began[e.run]; ok {
					busy[b.node] = append(busy[b.node], edge{b.at, 1}, edge{e.at, -1})
				}
				ended[e.run], last[e.run] = true, e.at
			}
			if j != nil && e.job != j.JobId {
				c.t.Errorf("job %s: ran as %d, the controllers call it %d", name, e.job, j.JobId)
			}
		}
		if j != nil && j.State == "COMPLETED" && !ended[j.Run] {
			c.t.Errorf("job %s (%d) is COMPLETED in run %d, and that run wrote no end: %+v", name, j.JobId, j.Run, c.events(name))
		}
	}
	for node, edges := range busy {
		if most := peak(edges); most > c.cpus {
			c.t.Errorf("%d jobs of one processor ran on %s at a time, which has %d", most, node, c.cpus)
		}
	}
	for name, j := range jobs {
		if j.State == "COMPLETED" && len(c.events(name)) == 0 {
			c.t.Errorf("job %s (%d) is COMPLETED and never ran", name, j.JobId)
		}
	}
	return n
}

// drained waits until no job waits or runs.
func (c *cluster) drained(most time.Duration, except func(*ctldpb.Job) bool) map[string]*ctldpb.Job {
	c.t.Helper()
	var jobs map[string]*ctldpb.Job
	within(c.t, most, "all jobs over", func() error {
		jobs = c.allJobs()
		left := map[string]int{}
		for _, j := range jobs {
			if over(j) || except != nil && except(j) {
				continue
			}
			left[j.State+" "+strings.Join(j.Flags, ",")+" "+j.Reason]++
		}
		if len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
	return jobs
}

func over(j *ctldpb.Job) bool {
	return j.State != "PENDING" && j.State != "RUNNING" && j.State != "SUSPENDED" && !slices.Contains(j.Flags, "COMPLETING")
}

// code is the refusal's code of an error, "" when it carries none.
func code(err error) string {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*ctldpb.Refusal); ok {
			return r.Code
		}
	}
	return ""
}
