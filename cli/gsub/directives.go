package gsub

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/cli/getopt"
)

// Limits of the directives of one script.
const (
	maxDirectiveLines = 10000
	maxDirectiveWords = 1000 // of one line
)

// directive is one line of options.
type directive struct {
	line  int
	words []string
	kind  kind
}

// kind is whose options a line has.
type kind uint8

const (
	ownLine kind = iota
	oldLine      // #SLURM, the word before #SBATCH
	pbsLine
	bsubLine
)

// scan is what the top of a script says.
type scan struct {
	directives []directive
	late       []int // lines of directives that stand below the first command
}

var markers = []string{"#SBATCH", "#GSUB"}

// scanScript collects the directives: comment lines and blank ones are passed over, the first other line
// ends them. Directives further down are only counted.
func scanScript(script []byte) (*scan, error) {
	s := &scan{}
	below := false
	for n := 1; len(script) > 0; n++ {
		var line []byte
		line, script, _ = bytes.Cut(script, []byte("\n"))
		rest, is := marked(line)
		which := ownLine
		if !is && !below {
			rest, which, is = foreign(line)
		}
		switch {
		case is && below:
			s.late = append(s.late, n)
		case is:
			words, err := splitWords(rest)
			if err != nil {
				return nil, fmt.Errorf("line %d of the script: %w", n, err)
			}
			s.directives = append(s.directives, directive{n, words, which})
			if len(s.directives) > maxDirectiveLines {
				return nil, fmt.Errorf("more than %d lines of directives", maxDirectiveLines)
			}
		case !comment(line):
			below = true
		}
		if len(s.late) >= maxDirectiveLines {
			break
		}
	}
	return s, nil
}

// comment tells whether the line is empty or a comment, indented or not: neither ends the directives.
func comment(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) == 0 || line[0] == '#'
}

// marked tells whether the line is a directive, and what follows the word.
func marked(line []byte) (string, bool) {
	for _, m := range markers {
		if rest, ok := bytes.CutPrefix(line, []byte(m)); ok {
			return string(rest), true
		}
	}
	return "", false
}

// foreign tells whether the line is a directive of another system, or of Slurm before #SBATCH. #SLURM begins many
// a plain comment too, so an option has to follow.
func foreign(line []byte) (string, kind, bool) {
	for _, f := range []struct {
		word string
		kind kind
	}{{"#PBS", pbsLine}, {"#BSUB", bsubLine}, {"#SLURM", oldLine}} {
		rest, ok := bytes.CutPrefix(line, []byte(f.word))
		if !ok || len(rest) == 0 || rest[0] != ' ' && rest[0] != '\t' {
			continue
		}
		if f.kind == oldLine && !bytes.HasPrefix(bytes.TrimLeft(rest, " \t"), []byte("-")) {
			continue
		}
		return string(rest), f.kind, true
	}
	return "", ownLine, false
}

// splitWords splits at blanks; '...' and "..." keep them, a backslash takes the next character as it is,
// an unquoted # begins a comment.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote := false, byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(s):
			i++
			word.WriteByte(s[i])
			in = true
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				word.WriteByte(c)
			}
		case c == '\'' || c == '"':
			quote, in = c, true
		case c == ' ' || c == '\t' || c == '\r':
			if in {
				words, in = append(words, word.String()), false
				word.Reset()
			}
		case c == '#':
			i = len(s)
		default:
			word.WriteByte(c)
			in = true
		}
		if len(words) > maxDirectiveWords {
			return nil, fmt.Errorf("more than %d words", maxDirectiveWords)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c is not closed", quote)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// directiveError is a word of a directive that is no option.
type directiveError struct {
	line int
	word string
}

func (e *directiveError) Error() string {
	return fmt.Sprintf("Invalid directive found in batch script: %s", e.word)
}

// foreign tells whether the line is another system's, which --ignore-pbs passes over.
func (d *directive) foreign() bool { return d.kind == pbsLine || d.kind == bsubLine }

// parse reads the options of the line; next tells that it only says hetjob.
func (d *directive) parse(opts []getopt.Option) (given []getopt.Given, next bool, err error) {
	words := d.words
	switch d.kind {
	case pbsLine:
		words = fromPBS(words)
	case bsubLine:
		words, _ = fromBSUB(words)
	}
	given, operands, err := getopt.Parse(opts, words, getopt.StopAtOperand)
	switch {
	case err != nil:
		return nil, false, err
	case len(operands) == 0:
		return given, false, nil
	case len(given) == 0 && len(operands) == 1 && (operands[0] == "hetjob" || operands[0] == "packjob"):
		return nil, true, nil
	}
	return nil, false, &directiveError{d.line, operands[0]}
}
