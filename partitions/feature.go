package partitions

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Limits of a --constraint expression.
const (
	maxFeatures = 256 // names in one expression
	maxNesting  = 32  // parentheses
	maxChoices  = 64  // alternatives or counts between brackets
	maxCount    = 65536
)

// Feature is a --constraint expression. It asks up to three things of a job's nodes: what each of
// them must have (a&b, a|b, parentheses), how many of them must have what ([a*2&b*4]; the nodes
// counted for one are not counted for another), and of which alternatives ([a|b]) all of them must
// have the same one. As in Slurm & and | are read from the left, without precedence, and a comma is &.
type Feature struct {
	each    *featureExpr // nil = nothing
	choices []*featureExpr
	counts  []FeatureCount
}

// FeatureCount is a part of a constraint that so many nodes must meet.
type FeatureCount struct {
	Nodes uint32
	Text  string // as written, without the count
	expr  *featureExpr
}

// featureExpr is a name, or two sides joined by & or |.
type featureExpr struct {
	name        string
	left, right *featureExpr
	any         bool // |
}

func (e *featureExpr) match(has []string) bool {
	switch {
	case e.left == nil:
		return slices.Contains(has, e.name)
	case e.any:
		return e.left.match(has) || e.right.match(has)
	}
	return e.left.match(has) && e.right.match(has)
}

// Match tells whether a node with these features can be one of the job's: it has what each node must
// have and at least one of the alternatives. Counts do not keep a node out.
func (f *Feature) Match(has []string) bool {
	if f.each != nil && !f.each.match(has) {
		return false
	}
	return len(f.choices) == 0 || f.Mask(has) != 0
}

// Choices is how many alternatives there are of which all nodes must have the same one; 0 = the
// constraint has none.
func (f *Feature) Choices() int { return len(f.choices) }

// Mask tells which of the alternatives a node with these features has, the first in the lowest bit.
func (f *Feature) Mask(has []string) uint64 {
	var m uint64
	for i, e := range f.choices {
		if e.match(has) {
			m |= 1 << i
		}
	}
	return m
}

// Counts gives how many nodes must have what. It is not to be changed.
func (f *Feature) Counts() []FeatureCount { return f.counts }

// CountMask tells for which of the counts a node with these features can stand, the first in the lowest bit.
func (f *Feature) CountMask(has []string) uint64 {
	var m uint64
	for i := range f.counts {
		if f.counts[i].expr.match(has) {
			m |= 1 << i
		}
	}
	return m
}

// ParseFeatures reads a constraint: names joined by & (or a comma) and |, with parentheses; one
// count of nodes behind a name or parenthesis, as a*2; and one pair of brackets, joined by &, which
// hold counts joined by & or alternatives joined by |. The error names the word and its place.
func ParseFeatures(text string) (*Feature, error) {
	p := featureParser{text: text, f: &Feature{}}
	if err := p.constraint(); err != nil {
		return nil, err
	}
	return p.f, nil
}

type featureParser struct {
	text    string
	pos     int
	names   int
	f       *Feature
	bracket bool // [ ] was read
}

// wrong says what is wrong at a place, counted in characters from 1.
func (p *featureParser) wrong(at int, format string, args ...any) error {
	return fmt.Errorf("constraint %q: at character %d: %s", p.text, at+1, fmt.Sprintf(format, args...))
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

func isAnd(op byte) bool { return op == '&' || op == ',' }

// constraint reads the whole text, from the left.
func (p *featureParser) constraint() error {
	if err := p.item('&'); err != nil {
		return err
	}
	for {
		op := p.peek()
		if op == 0 {
			return nil
		}
		if !isAnd(op) && op != '|' {
			return p.wrong(p.pos, "%q is not expected here; & or | would be", p.text[p.pos:p.pos+1])
		}
		if op == '|' && (p.bracket || len(p.f.counts) > 0) {
			return p.wrong(p.pos, "counts and brackets are joined by &, not by |")
		}
		p.pos++
		if err := p.item(op); err != nil {
			return err
		}
	}
}

// item reads one part between operators of the outermost level and joins it to what was read.
func (p *featureParser) item(op byte) error {
	start := p.pos
	if p.peek() == '[' {
		if op == '|' {
			return p.wrong(p.pos, "counts and brackets are joined by &, not by |")
		}
		if p.bracket || len(p.f.counts) > 0 {
			return p.wrong(p.pos, "only one pair of brackets is possible, and no count beside it")
		}
		p.bracket = true
		return p.brackets()
	}
	e, text, count, err := p.counted()
	if err != nil {
		return err
	}
	if count == 0 {
		p.join(e, op)
		return nil
	}
	if op == '|' {
		return p.wrong(start, "counts and brackets are joined by &, not by |")
	}
	if p.bracket || len(p.f.counts) > 0 {
		return p.wrong(start, "several counts stand in one pair of brackets, as [a*2&b*4]")
	}
	p.f.counts = append(p.f.counts, FeatureCount{Nodes: count, Text: text, expr: e})
	return nil
}

// join adds a part that each node must meet.
func (p *featureParser) join(e *featureExpr, op byte) {
	if p.f.each == nil {
		p.f.each = e
		return
	}
	p.f.each = &featureExpr{left: p.f.each, right: e, any: op == '|'}
}

// brackets reads [a|b] or [a*2&b*4].
func (p *featureParser) brackets() error {
	open := p.pos
	p.pos++
	var parts []FeatureCount
	var join byte
	for {
		at := p.pos
		e, text, count, err := p.counted()
		if err != nil {
			return err
		}
		if parts = append(parts, FeatureCount{Nodes: count, Text: text, expr: e}); len(parts) > maxChoices {
			return p.wrong(at, "more than %d parts are in brackets", maxChoices)
		}
		op := p.peek()
		if op == ',' {
			op = '&'
		}
		switch {
		case op == ']':
			p.pos++
			return p.close(open, join, parts)
		case op == 0:
			return p.wrong(open, "[ has no ]")
		case op != '&' && op != '|':
			return p.wrong(p.pos, "%q is not expected here; & , | or ] would be", p.text[p.pos:p.pos+1])
		case join != 0 && op != join:
			return p.wrong(p.pos, "& and | are mixed in brackets; put parentheses around what belongs together")
		}
		join = op
		p.pos++
	}
}

// close sorts out what the brackets held.
func (p *featureParser) close(open int, join byte, parts []FeatureCount) error {
	counted := 0
	for i := range parts {
		if parts[i].Nodes > 0 {
			counted++
		}
	}
	switch {
	case counted == 0 && join == '&':
		return p.wrong(open, "in brackets each part joined by & needs a count, as [a*2&b*4]")
	case counted == 0:
		for i := range parts {
			p.f.choices = append(p.f.choices, parts[i].expr)
		}
	case join == '|':
		return p.wrong(open, "alternatives joined by | have no counts")
	case counted < len(parts):
		return p.wrong(open, "in brackets each part joined by & needs a count, as [a*2&b*4]")
	default:
		p.f.counts = parts
	}
	return nil
}

// counted reads a name or parenthesis, and the count behind it; 0 when there is none.
func (p *featureParser) counted() (e *featureExpr, text string, count uint32, err error) {
	p.peek()
	start := p.pos
	if e, err = p.term(0); err != nil {
		return nil, "", 0, err
	}
	text = p.text[start:p.pos]
	if p.peek() != '*' {
		return e, text, 0, nil
	}
	p.pos++
	p.peek()
	from := p.pos
	for p.pos < len(p.text) && !strings.ContainsRune("&|,()[]* ", rune(p.text[p.pos])) {
		p.pos++
	}
	n, err := strconv.ParseUint(p.text[from:p.pos], 10, 32)
	if err != nil || n == 0 || n > maxCount {
		return nil, "", 0, p.wrong(from, "a number of nodes from 1 to %d is expected behind *, not %q", maxCount, p.text[from:p.pos])
	}
	return e, text, uint32(n), nil
}

// expr reads what is between parentheses.
func (p *featureParser) expr(depth int) (*featureExpr, error) {
	if depth > maxNesting {
		return nil, p.wrong(p.pos, "more than %d levels of parentheses", maxNesting)
	}
	left, err := p.term(depth)
	if err != nil {
		return nil, err
	}
	for {
		op := p.peek()
		if !isAnd(op) && op != '|' {
			return left, nil
		}
		p.pos++
		right, err := p.term(depth)
		if err != nil {
			return nil, err
		}
		left = &featureExpr{left: left, right: right, any: op == '|'}
	}
}

func (p *featureParser) term(depth int) (*featureExpr, error) {
	if p.peek() == '(' {
		open := p.pos
		p.pos++
		e, err := p.expr(depth + 1)
		if err != nil {
			return nil, err
		}
		switch p.peek() {
		case ')':
			p.pos++
			return e, nil
		case 0:
			return nil, p.wrong(open, "( has no )")
		default:
			return nil, p.wrong(p.pos, "%q is not possible in parentheses; & , | or ) would be", p.text[p.pos:p.pos+1])
		}
	}
	start := p.pos
	for p.pos < len(p.text) && !strings.ContainsRune("&|,()[]* ", rune(p.text[p.pos])) {
		p.pos++
	}
	if start == p.pos {
		return nil, p.wrong(start, "the name of a feature is missing")
	}
	if p.names++; p.names > maxFeatures {
		return nil, p.wrong(start, "more than %d features", maxFeatures)
	}
	return &featureExpr{name: p.text[start:p.pos]}, nil
}

// Plain tells that the constraint asks the same of each node and nothing of the nodes together. A nil
// one does.
func (f *Feature) Plain() bool { return f == nil || len(f.choices) == 0 && len(f.counts) == 0 }
