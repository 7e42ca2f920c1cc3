package gacctmgr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// decideTime is how long a question stays open; then the answer is no.
const decideTime = 30 * time.Second

// change does add, modify and delete.
func (c *call) change(verb string, args []string) int {
	if len(args) == 0 {
		c.env.Errorf("No valid entity in %s command", verb)
		c.env.Errorf("write account, user, qos or coordinator after it")
		return 1
	}
	e, err := findEntity(args[0])
	if err == nil && (!e.changes || verb == "modify" && e.name == "coordinator") {
		err = fmt.Errorf("%s: %ss cannot be changed this way", verb, e.name)
		if e.name == "association" {
			err = fmt.Errorf("%w\nname the user or account that it is of: %s user bob account=x", err, verb)
		}
	}
	if err == nil && c.readOnly {
		err = fmt.Errorf("Can't run this command in readonly mode.")
	}
	var cmd *command
	if err == nil {
		cmd, err = e.parse(verb, args[1:])
	}
	if err == nil {
		err = complete(verb, e, cmd)
	}
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	if !c.connect() {
		return 1
	}
	if bad := c.onlyCluster(cmd); bad != "" {
		c.env.Errorf("%s", bad)
		return 1
	}
	if verb == "modify" && len(cmd.where) == 0 && !c.immediate && !c.ask("You didn't set any conditions with 'WHERE'.\nAre you sure you want to continue?") {
		return 1
	}
	return c.commit(&ctldpb.ChangeAccountingRequest{Verb: verb, Entity: e.name, Where: cmd.where, Set: cmd.set, Key: client.NewKey()})
}

// complete refuses commands that say too little.
func complete(verb string, e *entity, cmd *command) error {
	has := func(list []*ctldpb.Clause, name string) bool {
		for _, c := range list {
			if c.Name == name {
				return true
			}
		}
		return false
	}
	switch {
	case verb == "add" && !has(cmd.set, "name"):
		return fmt.Errorf("Need name of %s to add.", e.name)
	case verb == "add" && e.name == "coordinator" && !has(cmd.set, "account"):
		return fmt.Errorf("Need an account to add a coordinator to.\nwrite: add coordinator account=NAME names=USERS")
	case verb == "delete" && len(cmd.where) == 0:
		return fmt.Errorf("No conditions given to remove, not executing.")
	case verb == "modify" && len(cmd.set) == 0:
		return fmt.Errorf("You didn't give me anything to set\nwrite: modify %s where KEY=VALUE set KEY=VALUE", e.name)
	}
	return nil
}

// commit shows what the change would do, asks, and does it; with -i it is done at once.
func (c *call) commit(req *ctldpb.ChangeAccountingRequest) int {
	if !c.immediate {
		trial := &ctldpb.ChangeAccountingRequest{Verb: req.Verb, Entity: req.Entity, Where: req.Where, Set: req.Set, DryRun: true}
		res, err := c.send(trial)
		if err != nil {
			return c.failed(err)
		}
		if c.tell(req, res) != 0 {
			return 1
		}
		if !c.ask("Would you like to commit changes?") {
			fmt.Fprintln(c.env.Stdout, " Changes Discarded")
			return 1
		}
		if _, err = c.send(req); err != nil {
			return c.failed(err)
		}
		return 0
	}
	res, err := c.send(req)
	if err != nil {
		return c.failed(err)
	}
	return c.tell(req, res)
}

func (c *call) send(req *ctldpb.ChangeAccountingRequest) (res *ctldpb.ChangeAccountingResponse, err error) {
	err = c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ChangeAccounting(ctx, req)
		return err
	})
	return res, err
}

// plural names several things of an entity.
func plural(entity string) string {
	if entity == "qos" {
		return "QOS"
	}
	return entity + "s"
}

// heading is the line above what changed.
func heading(verb, entity string, associations bool) string {
	if associations && verb != "add" {
		plurals := map[string]string{"modify": " Modified %s associations...", "delete": " Deleting %s associations..."}
		return fmt.Sprintf(plurals[verb], entity)
	}
	switch {
	case associations:
		return " Associations"
	case verb == "add" && entity == "qos":
		return " Adding QOS(s)"
	case verb == "add":
		return " Adding " + strings.ToUpper(entity[:1]) + entity[1:] + "(s)"
	case verb == "modify":
		return " Modified " + plural(entity) + "..."
	}
	return " Deleting " + plural(entity) + "..."
}

// tell prints what changed or would; 1 when that is nothing.
func (c *call) tell(req *ctldpb.ChangeAccountingRequest, res *ctldpb.ChangeAccountingResponse) int {
	for _, w := range res.Warnings {
		c.env.Warnf("%s", w)
	}
	if len(res.Changed) == 0 {
		words := map[string]string{"add": " Nothing new added.", "modify": " Nothing modified", "delete": " Nothing deleted"}
		if !c.quiet {
			fmt.Fprintln(c.env.Stdout, words[req.Verb])
		}
		return 1
	}
	if c.quiet {
		return 0
	}
	last := ""
	for _, line := range res.Changed {
		line = render.Clean(line)
		words := assocWords(line)
		if head := heading(req.Verb, req.Entity, words != nil); head != last {
			fmt.Fprintln(c.env.Stdout, head)
			last = head
		}
		if words != nil {
			line = assocLine(req.Verb, c.client.Cluster(), words)
		}
		fmt.Fprintf(c.env.Stdout, "  %s\n", strings.TrimSpace(line))
	}
	if req.Verb == "add" {
		c.settings(req)
	}
	return 0
}

// assocWords reads "A = physics U = bob P = part"; nil when the line is none of an association.
func assocWords(line string) map[string]string {
	f := strings.Fields(line)
	if len(f)%3 != 0 || len(f) == 0 {
		return nil
	}
	words := map[string]string{}
	for i := 0; i < len(f); i += 3 {
		if f[i+1] != "=" || len(f[i]) != 1 {
			return nil
		}
		words[f[i]] = f[i+2]
	}
	return words
}

// assocLine writes an association with sacctmgr's order and columns.
func assocLine(verb, cluster string, words map[string]string) string {
	words["C"] = render.Or(words["C"], cluster)
	order := []struct {
		letter string
		width  int
	}{{"C", 10}, {"A", 20}, {"U", 9}, {"P", 10}}
	if verb == "add" {
		order[0], order[2] = order[2], order[0]
		order[1].width = 10
	}
	var parts []string
	for _, o := range order {
		if v := words[o.letter]; v != "" {
			parts = append(parts, fmt.Sprintf("%s = %-*s", o.letter, o.width, v))
		}
	}
	return strings.Join(parts, " ")
}

// onlyCluster takes cluster= out of a command; another cluster's name is refused.
func (c *call) onlyCluster(cmd *command) (bad string) {
	this := c.client.Cluster()
	for _, list := range []*[]*ctldpb.Clause{&cmd.where, &cmd.set} {
		*list = slices.DeleteFunc(*list, func(w *ctldpb.Clause) bool {
			if w.Name == "cluster" && w.Value != this && this != "" {
				bad = fmt.Sprintf("No cluster '%s' known by database.\nthis is cluster %s", w.Value, this)
			}
			return w.Name == "cluster" || w.Name == "defaultwckey"
		})
	}
	return bad
}

// settings shows what was asked for beyond the names.
func (c *call) settings(req *ctldpb.ChangeAccountingRequest) {
	first := true
	for _, s := range req.Set {
		if s.Name == "name" || s.Name == "cluster" || s.Name == "account" {
			continue
		}
		if first {
			fmt.Fprintln(c.env.Stdout, " Settings")
			first = false
		}
		fmt.Fprintf(c.env.Stdout, "  %-14s = %s\n", display(s.Name), render.Clean(s.Value))
	}
}

// display is a key as people write it.
func display(name string) string {
	for _, set := range [][]string{limitKeys, accountKeys, userKeys, qosKeys, assocKeys} {
		for _, k := range set {
			if strings.EqualFold(k, name) {
				return k
			}
		}
	}
	return name
}

// ask puts a question and waits for y; anything else, the end of the input, and the end of the time are no.
func (c *call) ask(question string) bool {
	fmt.Fprintf(c.env.Stdout, "%s (You have %d seconds to decide)\n(N/y): ", question, int(decideTime/time.Second))
	answer := make(chan string, 1)
	go func() {
		line, _ := c.in.ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		if !c.env.StdinTerminal {
			fmt.Fprintln(c.env.Stdout)
		}
		word := strings.ToLower(strings.TrimSpace(line))
		return word == "y" || word == "yes"
	case <-c.env.Timer(decideTime):
		fmt.Fprintln(c.env.Stdout, "timeout")
		c.over = true // the input is still being read: a session cannot go on with it
		return false
	}
}
