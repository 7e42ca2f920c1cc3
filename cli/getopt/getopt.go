// Package getopt reads command lines the way getopt_long does: unique prefixes of long options,
// glued short options, optional values; one table of options also gives --help and the manual page.
package getopt

import (
	"fmt"
	"strings"
)

// Arg says whether an option takes a value.
type Arg uint8

// The three kinds of getopt_long.
const (
	NoArg       Arg = iota
	RequiredArg     // --name=value, --name value, -nvalue, -n value
	OptionalArg     // --name, --name=value, -nvalue
)

// Option is one row of a command's table.
type Option struct {
	Long  string
	Short byte // 0 = none
	Arg   Arg
	Value string   // what --help calls the value
	Help  string   // one line; empty = accepted and left out of --help, but in the manual page
	Alias []string // other long spellings
}

// Given is one option of a command line.
type Given struct {
	Option   *Option
	Value    string
	HasValue bool
}

// Mode says what happens at the first word that is not an option.
type Mode uint8

// Permute takes options after operands too; StopAtOperand leaves all that follows alone.
const (
	Permute Mode = iota
	StopAtOperand
)

// Error is a bad command line. Text is getopt's line without the program's name.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }

func errorf(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }

// Parse splits args (without the program's name) into options and operands.
func Parse(table []Option, args []string, mode Mode) (given []Given, operands []string, err error) {
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case word == "--":
			return given, append(operands, args...), nil
		case strings.HasPrefix(word, "--"):
			var one Given
			if one, args, err = parseLong(table, word[2:], args); err != nil {
				return nil, nil, err
			}
			given = append(given, one)
		case len(word) > 1 && word[0] == '-':
			var some []Given
			if some, args, err = parseShort(table, word[1:], args); err != nil {
				return nil, nil, err
			}
			given = append(given, some...)
		default:
			operands = append(operands, word)
			if mode == StopAtOperand {
				return given, append(operands, args...), nil
			}
		}
	}
	return given, operands, nil
}

func parseLong(table []Option, word string, args []string) (Given, []string, error) {
	name, value, has := strings.Cut(word, "=")
	opt, err := find(table, name)
	if err != nil {
		return Given{}, nil, err
	}
	switch {
	case opt.Arg == NoArg && has:
		return Given{}, nil, errorf("option '--%s' doesn't allow an argument", opt.Long)
	case opt.Arg == RequiredArg && !has:
		if len(args) == 0 {
			return Given{}, nil, errorf("option '--%s' requires an argument", opt.Long)
		}
		value, has, args = args[0], true, args[1:]
	}
	return Given{Option: opt, Value: value, HasValue: has}, args, nil
}

// find takes an exact name, else the only option that name is a prefix of.
func find(table []Option, name string) (*Option, error) {
	var match *Option
	var names []string
	for i := range table {
		opt := &table[i]
		for _, long := range opt.spellings() {
			if long == name {
				return opt, nil
			}
			if name != "" && strings.HasPrefix(long, name) {
				names = append(names, "'--"+long+"'")
				if match == nil {
					match = opt
				} else if match != opt {
					match = &ambiguous
				}
			}
		}
	}
	switch match {
	case nil:
		return nil, errorf("unrecognized option '--%s'", name)
	case &ambiguous:
		return nil, errorf("option '--%s' is ambiguous; possibilities: %s", name, strings.Join(names, " "))
	}
	return match, nil
}

var ambiguous Option

func (o *Option) spellings() []string {
	if o.Long == "" {
		return o.Alias
	}
	if len(o.Alias) == 0 {
		return []string{o.Long}
	}
	return append([]string{o.Long}, o.Alias...)
}

func parseShort(table []Option, word string, args []string) ([]Given, []string, error) {
	var given []Given
	for i := 0; i < len(word); i++ {
		opt := findShort(table, word[i])
		if opt == nil {
			return nil, nil, errorf("invalid option -- '%c'", word[i])
		}
		rest := word[i+1:]
		switch {
		case opt.Arg == NoArg:
			given = append(given, Given{Option: opt})
			continue
		case rest != "":
			return append(given, Given{Option: opt, Value: rest, HasValue: true}), args, nil
		case opt.Arg == OptionalArg:
			return append(given, Given{Option: opt}), args, nil
		case len(args) == 0:
			return nil, nil, errorf("option requires an argument -- '%c'", word[i])
		}
		return append(given, Given{Option: opt, Value: args[0], HasValue: true}), args[1:], nil
	}
	return given, args, nil
}

func findShort(table []Option, c byte) *Option {
	if c == 0 {
		return nil
	}
	for i := range table {
		if table[i].Short == c {
			return &table[i]
		}
	}
	return nil
}

// Lookup gives the option with exactly this long name or alias.
func Lookup(table []Option, long string) *Option {
	for i := range table {
		for _, s := range table[i].spellings() {
			if s == long {
				return &table[i]
			}
		}
	}
	return nil
}
