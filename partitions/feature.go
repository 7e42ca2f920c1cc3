package partitions

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits of a --constraint expression.
const (
	maxFeatures = 256 // names in one expression
	maxNesting  = 32  // parentheses
)

var errTooNested = errors.New("constraint has more than 32 levels of parentheses")

// Feature is a --constraint expression: a name, or two sides joined by & or |. As in Slurm there is
// no precedence: it is read from the left.
type Feature struct {
	name        string
	left, right *Feature
	any         bool // |
}

// Match tells whether a node with these features satisfies the expression.
func (f *Feature) Match(has []string) bool {
	switch {
	case f.left == nil:
		return slices.Contains(has, f.name)
	case f.any:
		return f.left.Match(has) || f.right.Match(has)
	}
	return f.left.Match(has) && f.right.Match(has)
}

// ParseFeatures reads names joined by & (or a comma) and |, with parentheses.
func ParseFeatures(text string) (*Feature, error) {
	p := featureParser{text: text}
	f, err := p.expr(0)
	if err != nil {
		return nil, err
	}
	if p.pos < len(text) {
		return nil, fmt.Errorf("constraint %q: unexpected %q at character %d", text, text[p.pos], p.pos+1)
	}
	return f, nil
}

type featureParser struct {
	text  string
	pos   int
	names int
}

func (p *featureParser) peek() byte {
	for p.pos < len(p.text) && p.text[p.pos] == ' ' {
		p.pos++
	}
	if p.pos == len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

func (p *featureParser) expr(depth int) (*Feature, error) {
	if depth > maxNesting {
		return nil, errTooNested
	}
	left, err := p.term(depth)
	if err != nil {
		return nil, err
	}
	for {
		op := p.peek()
		if op != '&' && op != ',' && op != '|' {
			return left, nil
		}
		p.pos++
		right, err := p.term(depth)
		if err != nil {
			return nil, err
		}
		left = &Feature{left: left, right: right, any: op == '|'}
	}
}

func (p *featureParser) term(depth int) (*Feature, error) {
	if p.peek() == '(' {
		p.pos++
		f, err := p.expr(depth + 1)
		if err != nil {
			return nil, err
		}
		if p.peek() != ')' {
			return nil, fmt.Errorf("constraint %q: missing )", p.text)
		}
		p.pos++
		return f, nil
	}
	start := p.pos
	for p.pos < len(p.text) && !strings.ContainsRune("&|,()[]* ", rune(p.text[p.pos])) {
		p.pos++
	}
	if start == p.pos {
		return nil, fmt.Errorf("constraint %q: a feature name is missing at character %d", p.text, start+1)
	}
	if p.names++; p.names > maxFeatures {
		return nil, fmt.Errorf("constraint names more than %d features", maxFeatures)
	}
	return &Feature{name: p.text[start:p.pos]}, nil
}
