package gctl

import (
	"errors"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/getopt"
)

// subword is what follows a word such as "controller".
type subword struct {
	name     string
	min, max int      // arguments; max < 0 = any number
	options  []string // those of the word's table that it takes
	write    string   // how it is written
	run      func(c *call, o given, args []string) int
}

// given is the options that stand after a word.
type given []getopt.Given

// value is that of the last option of a name; "" when there is none.
func (g given) value(long string) (value string, has bool) {
	for _, o := range g {
		if o.Option.Long == long {
			value, has = o.Value, true
		}
	}
	return value, has
}

func (g given) has(long string) bool {
	_, has := g.value(long)
	return has
}

// choose runs the subword that args begin with; an option that it has no use for is an error, not ignored.
func (c *call) choose(word string, list []subword, g []getopt.Given, args []string) int {
	var names []string
	for i := range list {
		names = append(names, list[i].name)
	}
	if len(args) == 0 {
		c.env.Errorf("%s: too few arguments", word)
		c.env.Errorf("write: %s %s %s", c.env.Name, word, strings.Join(names, "|"))
		return 1
	}
	for i := range list {
		s := &list[i]
		if s.name != strings.ToLower(args[0]) {
			continue
		}
		rest := args[1:]
		bad := ""
		for _, o := range g {
			if !slices.Contains(s.options, o.Option.Long) {
				bad = word + " " + s.name + " takes no --" + o.Option.Long
			} else if o.HasValue && o.Value == "" { // as of an unset variable: the CA's key would lie in the folder that one stands in
				bad = word + " " + s.name + ": --" + o.Option.Long + "= is empty: " + o.Option.Value + " was expected"
			}
		}
		switch {
		case bad != "":
		case len(rest) < s.min:
			bad = word + " " + s.name + ": too few arguments"
		case s.max >= 0 && len(rest) > s.max:
			bad = word + " " + s.name + ": one word too many: " + rest[s.max]
		}
		if bad != "" {
			c.env.Errorf("%s", bad)
			c.env.Errorf("write: %s %s %s", c.env.Name, word, s.write)
			return 1
		}
		return s.run(c, g, rest)
	}
	c.env.Errorf("%s: unknown word %q", word, args[0])
	c.env.Errorf("known are %s", strings.Join(names, ", "))
	return 1
}

// refused prints why a word of ours could not be done, and what to do about it.
func (c *call) refused(what string, err error) int {
	if c.quiet {
		return 1
	}
	var r *client.Refusal
	if !errors.As(err, &r) {
		c.env.Errorf("%s: %v", what, err)
		return 1
	}
	c.env.Errorf("%s: %s", what, r.Text)
	if r.Why != "" {
		c.env.Errorf("%s", r.Why)
	}
	if r.Text == client.TextDenied {
		c.env.Errorf("%s whoami shows whom the controller takes you for; Operators and Admins in grid.conf name others, root of a controller's host is an admin", c.env.Name)
	}
	return 1
}
