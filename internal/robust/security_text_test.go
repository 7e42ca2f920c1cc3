package robust

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// hostile is a text that would clear a screen, set its title, forge a line, and overwrite what stands before it.
const hostile = "a\x1b[2J\x1b]0;title\x07\r\nFORGED LINE\u009b31m\x7f\tz"

// raw tells of control characters in what goes to a terminal or into a log; newlines end lines.
func raw(text string) error {
	for i, r := range text {
		if r < ' ' && r != '\n' || 0x7f <= r && r < 0xa0 {
			return fmt.Errorf("control character %q at %d in %.200q", r, i, text[max(0, i-60):])
		}
	}
	if strings.HasPrefix(text, "FORGED") || strings.Contains(text, "\nFORGED") {
		return fmt.Errorf("a forged line in %.400q", text)
	}
	return nil
}

// TestSecurityText: control characters in what users name their jobs, write as comments and reasons, reach
// neither an operator's terminal nor a log.
func TestSecurityText(t *testing.T) {
	needRoot(t)
	if testing.Short() {
		t.Skip("starts a cluster; not with -short")
	}
	c := start(t, layout{controllers: 1, nodes: 1, partitions: []string{"PartitionName=batch Nodes=ALL Default=YES"}})
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	user, taken := c.user(userUID).any(), map[string]uint32{}
	for _, what := range []string{"name", "comment", "output", "directory", "command", "line", "host", "account", "arguments", "export", "signal", "partition", "dependency", "rare"} {
		spec := c.spec("text-"+what, ":")
		switch what {
		case "name":
			spec.Name = hostile
		case "comment":
			spec.Comment = hostile
		case "output":
			spec.StdOut, spec.StdErr = "/nodir/"+hostile, "/nodir/"+hostile
		case "directory":
			spec.WorkDir = "/" + hostile
		case "command":
			spec.Command = "/" + hostile
		case "line":
			spec.SubmitLine = hostile
		case "host":
			spec.SubmitHost = hostile
		case "account":
			spec.Account = hostile
		case "arguments":
			spec.Args = []string{hostile}
		case "export":
			spec.Export = hostile
		case "signal":
			spec.Signal = hostile
		case "partition":
			spec.Partition = hostile
		case "dependency":
			spec.Dependency = hostile
		case "rare":
			spec.Rare = map[string]string{"wckey": hostile, hostile: "x"}
		}
		if res, err := user.Submit(ctx, &ctldpb.SubmitRequest{Key: what, Spec: spec}); err == nil {
			taken[what] = res.JobId
		}
	}
	if len(taken) < 5 {
		t.Errorf("only %v were taken", taken)
	}
	ids := ""
	for _, id := range taken {
		ids += fmt.Sprint(id) + ","
	}
	within(t, 40*time.Second, "all jobs over", func() error {
		for _, j := range c.allJobs() {
			if !over(j) {
				return fmt.Errorf("%s %s", j.State, j.Reason)
			}
		}
		return nil
	})
	held := c.spec("held", ":")
	held.Hold, held.Name, held.Comment = true, hostile, hostile
	heldID := c.submit(held)
	root := c.user(0).any()
	_, err := root.UpdateNode(ctx, &ctldpb.UpdateNodeRequest{Names: "n1", Set: map[string]string{"State": "DRAIN", "Reason": hostile, "Comment": hostile}, Key: "n"})
	t.Logf("a node's reason: %v", err)
	root.UpdateJob(ctx, &ctldpb.UpdateJobRequest{JobIds: []string{fmt.Sprint(heldID)}, Set: map[string]string{"JobName": hostile, "Comment": hostile, "AdminComment": hostile}, Key: "j"})
	// Words that the audit log repeats.
	root.UpdatePartition(ctx, &ctldpb.UpdatePartitionRequest{Name: hostile, Set: map[string]string{hostile: "x"}, Key: "p"})
	root.UpdateNode(ctx, &ctldpb.UpdateNodeRequest{Names: hostile, Set: map[string]string{hostile: "x"}, Key: "m"})
	root.CreateJoinToken(ctx, &ctldpb.CreateJoinTokenRequest{Role: hostile, Names: hostile})
	root.RevokeJoinToken(ctx, &ctldpb.RevokeJoinTokenRequest{Id: hostile})
	root.ChangeController(ctx, &ctldpb.ChangeControllerRequest{Op: ctldpb.ChangeControllerRequest_REMOVE, Name: hostile})
	user.Cancel(ctx, &ctldpb.CancelRequest{Filter: &ctldpb.JobFilter{JobIds: []string{hostile}}, Signal: hostile, Key: "c"})
	user.GetScript(ctx, &ctldpb.GetScriptRequest{JobId: heldID})
	id := fmt.Sprint(heldID)
	commands := [][]string{
		{"gqueue", "--states=all"}, {"gqueue", "-l", "--states=all"}, {"gqueue", "--states=all", "-o", "%all"}, {"gqueue", "-h", "--states=all", "-o", "%i|%j|%k|%Z|%o|%a|%r|%R|%u"},
		{"gqueue", "--json", "--states=all"}, {"gqueue", "--yaml", "--states=all"}, {"gqueue", "-O", "name,comment,command,stdout,workdir,account,reason"}, {"gqueue", "--name", hostile},
		{"gctl", "show", "job"}, {"gctl", "-o", "show", "job"}, {"gctl", "show", "job", id}, {"gctl", "--json", "show", "job"}, {"gctl", "show", "node"}, {"gctl", "show", "partition"}, {"gctl", "show", "config"},
		{"gctl", "show", "job", hostile}, {"gctl", hostile}, {"gctl", "update", "job", id, hostile + "=" + hostile}, {"gctl", "hold", hostile}, {"gctl", "update", "node", "n1", "State=" + hostile},
		{"ginfo", "-R"}, {"ginfo", "-N", "-l"}, {"ginfo", "-o", "%E %n %T"}, {"ginfo", "--json"}, {"ginfo", "-p", hostile},
		{"gacct", "-a", "-o", "all"}, {"gacct", "-a", "--parsable2", "-o", "JobID,JobName,Account,Comment,WorkDir,SubmitLine,Reason"}, {"gacct", "-a", "--json"}, {"gacct", "-j", strings.TrimSuffix(ids, ",")}, {"gacct", "-o", hostile},
		{"gcancel", hostile}, {"gcancel", "--name", hostile, "-v"}, {"gcancel", "-v", id}, {"gsub", "-p", hostile, "--wrap", ":"}, {"gsub", "--" + hostile}, {"gsub", "--mem", hostile, "--wrap", ":"}, {"gsub", hostile},
	}
	shown := 0
	for _, cmd := range commands {
		out, _ := c.admin(cmd[0], cmd[1:]...) // what is refused has its text in the output too
		if strings.Contains(out, "FORGED") {
			shown++
		}
		if err := raw(out); err != nil {
			t.Errorf("%q: %v", cmd, err)
		}
	}
	if shown < 10 {
		t.Errorf("only %d commands showed the text at all", shown)
	}
	if text, _ := os.ReadFile(c.path("state", "c1", "audit.log")); !strings.Contains(string(text), "FORGED") {
		t.Error("the audit log does not hold the words that it was to repeat")
	}
	logs, _ := filepath.Glob(c.path("log", "*"))
	for _, f := range append(logs, c.path("state", "c1", "audit.log")) {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if err := raw(string(text)); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
}
