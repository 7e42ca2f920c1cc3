package conf

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Line is one key and its value as people read it, in the words of "scontrol show config".
type Line struct{ Key, Value string }

// Show lists the top keys with their values, sorted by key.
func (c *Config) Show() []Line {
	var out []Line
	v := reflect.ValueOf(c)
	for _, k := range keysOf(v.Elem().Type()) {
		out = append(out, Line{k.name, k.show(v.Elem().Field(k.field))})
	}
	slices.SortFunc(out, func(a, b Line) int { return strings.Compare(strings.ToLower(a.Key), strings.ToLower(b.Key)) })
	return out
}

// show prints a value with its unit.
func (k key) show(f reflect.Value) string {
	unit, _, _ := strings.Cut(k.unit, ":")
	switch x := f.Interface().(type) {
	case time.Duration:
		switch {
		case unit == "minutes":
			return fmt.Sprintf("%d min", x/time.Minute)
		case x%time.Second != 0:
			return fmt.Sprintf("%d ms", x/time.Millisecond)
		}
		return fmt.Sprintf("%d sec", x/time.Second)
	case bool:
		if x {
			return "1"
		}
		return "0"
	case []string:
		if len(x) == 0 {
			return "(null)"
		}
		return strings.Join(x, ",")
	case string:
		if x == "" {
			return "(null)"
		}
		return x
	case Lease:
		switch {
		case x == 0:
			return "(null)"
		case x == NoLease:
			return "0 sec"
		case x%1000 != 0:
			return fmt.Sprintf("%d ms", x)
		}
		return fmt.Sprintf("%d sec", x/1000)
	case int64:
		switch {
		case unit == "mib":
			return fmt.Sprintf("%d MB", x>>20)
		case unit == "timelimit" && x < 0:
			return "UNLIMITED"
		case unit == "timelimit":
			return fmt.Sprintf("%d sec", x/1000)
		}
	}
	return fmt.Sprint(f.Interface())
}

// Diff tells what next changes: applied are lines such as "KillWait 30 sec -> 10 sec" that
// reconfigure can put into force, restart those that a daemon reads only when it starts.
func Diff(old, next *Config) (applied, restart []string) {
	take := func(apply, line string) {
		if apply == "reload" {
			applied = append(applied, line)
		} else {
			restart = append(restart, line)
		}
	}
	diffStruct("", old, next, take)
	diffList(controllersByName(old), controllersByName(next), "controller", func(a, b *Controller, name string) {
		diffStruct("controller "+name+": ", a, b, take)
	}, func(line string) { take("restart", line) })
	diffList(nodesByName(old), nodesByName(next), "node", func(a, b *Node, name string) {
		diffStruct("node "+name+": ", a, b, take)
	}, func(line string) { take("reload", line) })
	diffList(partitionsByName(old), partitionsByName(next), "partition", func(a, b *Partition, name string) {
		diffStruct("partition "+name+": ", a, b, take)
	}, func(line string) { take("reload", line) })
	slices.Sort(applied)
	slices.Sort(restart)
	return applied, restart
}

// diffStruct compares the tagged fields of two structs of one type.
func diffStruct[T any](prefix string, old, next *T, take func(apply, line string)) {
	a, b := reflect.ValueOf(old).Elem(), reflect.ValueOf(next).Elem()
	for _, k := range keysOf(a.Type()) {
		x, y := k.show(a.Field(k.field)), k.show(b.Field(k.field))
		if x != y {
			take(k.apply, fmt.Sprintf("%s%s %s -> %s", prefix, k.name, clip(x), clip(y)))
		}
	}
}

func diffList[T any](old, next map[string]*T, what string, both func(a, b *T, name string), one func(line string)) {
	for name, a := range old {
		if b, ok := next[name]; ok {
			both(a, b, name)
		} else {
			one(what + " " + name + " removed")
		}
	}
	for name := range next {
		if _, ok := old[name]; !ok {
			one(what + " " + name + " added")
		}
	}
}

func controllersByName(c *Config) map[string]*Controller {
	m := make(map[string]*Controller, len(c.Controllers))
	for i := range c.Controllers {
		m[c.Controllers[i].Name] = &c.Controllers[i]
	}
	return m
}

func nodesByName(c *Config) map[string]*Node {
	m := make(map[string]*Node, len(c.Nodes))
	for i := range c.Nodes {
		m[c.Nodes[i].Name] = &c.Nodes[i]
	}
	return m
}

func partitionsByName(c *Config) map[string]*Partition {
	m := make(map[string]*Partition, len(c.Partitions))
	for i := range c.Partitions {
		m[c.Partitions[i].Name] = &c.Partitions[i]
	}
	return m
}

// Digest is the SHA-256, in hex, of what reconfigure puts into force, and of the cluster's name. Keys that
// a daemon reads only when it starts are left out: files that name other folders on other hosts are still
// the same for the cluster, and controllers follow each other's reconfigure.
func (c *Config) Digest() string {
	h := sha256.New()
	keys := keysOf(reflect.TypeFor[Config]())
	for _, l := range c.Show() {
		if keys[strings.ToLower(l.Key)].apply == "reload" || l.Key == "ClusterName" {
			fmt.Fprintf(h, "%s=%s\n", l.Key, l.Value)
		}
	}
	for _, n := range c.Nodes {
		fmt.Fprintf(h, "%+v\n", n)
	}
	for _, p := range c.Partitions {
		fmt.Fprintf(h, "%+v\n", p)
	}
	return hex.EncodeToString(h.Sum(nil))
}
