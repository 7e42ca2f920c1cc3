package gacctmgr

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// list prints the things of one entity.
func (c *call) list(args []string) int {
	if len(args) == 0 {
		c.env.Errorf("No valid entity in list command")
		c.env.Errorf("write account, association, cluster, coordinator, qos, tres or user after it")
		return 1
	}
	e, err := findEntity(args[0])
	var cmd *command
	if err == nil {
		cmd, err = e.parse("list", args[1:])
	}
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	cmd.withAssoc = cmd.withAssoc || c.withAssoc
	shown, cols, err := columnsOf(e, cmd)
	if err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	if !c.connect() {
		return 1
	}
	if e.name != "cluster" {
		if bad := c.onlyCluster(cmd); bad != "" {
			c.env.Errorf("%s", bad)
			return 1
		}
	}
	rows, err := c.rows(e.name, cmd.where)
	if err == nil && e.name != "association" && joins(e, cmd, shown) {
		rows, err = c.join(e.name, cmd.where, rows)
	}
	if err != nil {
		return c.failed(err)
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	if c.json {
		return c.writeJSON(out, e.name, rows)
	}
	r := render.Report{Columns: cols, NoHeader: c.noHeader, Parsable: c.parsable, Trailing: c.trailing}
	r.Header(out)
	for _, row := range rows {
		cells := make([]string, len(shown))
		for i, f := range shown {
			cells[i] = f.value(e.name, row.Fields)
			if cmd.tree && f.name == "Account" {
				cells[i] = indent(row, cells[i], c.parsable)
			}
		}
		r.Row(out, cells)
	}
	return 0
}

// indent puts an account's name below its parent's; a user's row stands one deeper.
func indent(row *ctldpb.AccountingRow, name string, parsable bool) string {
	if row.Fields["user"] != "" && !parsable {
		return strings.Repeat(" ", int(row.Depth)) + name
	}
	return strings.Repeat(" ", int(row.Depth)) + name
}

// columnsOf picks the fields. In a tree the accounts stand to the left, where depth shows.
func columnsOf(e *entity, cmd *command) ([]*field, []render.ReportColumn, error) {
	format := cmd.format
	if format == "" {
		format = formats[e.name]
		if cmd.withAssoc && (e.name == "user" || e.name == "account") {
			format += joined
			if e.name == "account" {
				format = strings.Replace(format, ",Account,Partition,", ",ParentName,User,", 1)
			}
		}
		if cmd.withCoord {
			format += ",Coordinators"
		}
	}
	shown, cols, err := parseFormat(format)
	for i := range cols {
		if cmd.tree && shown[i].name == "Account" && (cmd.format == "" || !strings.Contains(strings.ToLower(cmd.format), "account%")) {
			cols[i].Width = -20
		}
	}
	return shown, cols, err
}

// joins tells whether a list of users or accounts needs their associations too.
func joins(e *entity, cmd *command, shown []*field) bool {
	if e.name != "user" && e.name != "account" {
		return false
	}
	if cmd.withAssoc {
		return true
	}
	for _, f := range shown {
		if f.of == ofAssociation && (f.name != "Account" || e.name != "account") {
			return true
		}
	}
	return false
}

func (c *call) rows(entity string, where []*ctldpb.Clause) ([]*ctldpb.AccountingRow, error) {
	var res *ctldpb.ListAccountingResponse
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListAccounting(ctx, &ctldpb.ListAccountingRequest{Read: &ctldpb.ReadOptions{Stale: c.stale}, Entity: entity, Where: where})
		return err
	})
	if err == nil && res.Info.GetAgeMs() > 0 {
		c.env.Infof("this answer of %s is %d ms old", res.Info.GetController(), res.Info.GetAgeMs())
	}
	for _, r := range res.GetRows() {
		if r.Fields == nil {
			r.Fields = map[string]string{}
		}
		if _, has := r.Fields["cluster"]; !has && c.client.Cluster() != "" && entity != "qos" && entity != "tres" {
			r.Fields["cluster"] = c.client.Cluster()
		}
	}
	return res.GetRows(), err
}

// join gives each user or account one row for each of its associations.
func (c *call) join(entity string, where []*ctldpb.Clause, rows []*ctldpb.AccountingRow) ([]*ctldpb.AccountingRow, error) {
	var narrow []*ctldpb.Clause
	for _, w := range where {
		if w.Name == "account" || w.Name == "partition" {
			narrow = append(narrow, w)
		}
	}
	all, err := c.rows("association", narrow)
	if err != nil {
		return nil, err
	}
	byName := map[string][]*ctldpb.AccountingRow{}
	for _, a := range all {
		if entity == "account" || a.Fields["user"] != "" {
			byName[a.Fields[entity]] = append(byName[a.Fields[entity]], a)
		}
	}
	var out []*ctldpb.AccountingRow
	for _, r := range rows {
		name := render.Or(r.Fields[entity], r.Fields["name"])
		if len(byName[name]) == 0 {
			out = append(out, r)
		}
		for _, a := range byName[name] {
			both := maps.Clone(a.Fields)
			for k, v := range r.Fields {
				if both[k] == "" && k != "user" { // what the account's own row calls user is nobody
					both[k] = v
				}
			}
			if entity == "user" {
				both["user"] = name
			}
			out = append(out, &ctldpb.AccountingRow{Fields: both, Depth: a.Depth})
		}
	}
	return out, nil
}

func (c *call) writeJSON(out *bufio.Writer, entity string, rows []*ctldpb.AccountingRow) int {
	list := make([]map[string]string, 0, len(rows))
	for _, r := range rows {
		list = append(list, r.Fields)
	}
	name := strings.ToLower(plural(entity))
	meta := render.NewMeta(c.client.Cluster(), program.SlurmVersion, append([]string{c.env.Name}, c.env.Args...))
	if err := render.WriteJSON(out, name, list, c.env.Now(), meta, c.env.Getenv("SLURM_JSON") == "compact"); err != nil {
		c.env.Errorf("%v", err)
		return 1
	}
	return 0
}

// dump and load are in dump.go; text of a fault is shared here.
func badLine(n int, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", n, fmt.Sprintf(format, args...))
}
