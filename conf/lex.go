package conf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Limits of what is read; over any of them the file is refused with the limit named.
const (
	maxFile    = 16 << 20 // bytes of one file
	maxLine    = 1 << 20  // bytes of one line, continuations joined
	maxInclude = 10       // depth of Include
	maxLines   = 1 << 20  // logical lines, all files together
)

// pair is one Key=Value with its place. op is "=" or, for Nodes+=, "+=".
type pair struct {
	key, value string
	op         string
}

// record is one logical line: the pairs in order.
type record struct {
	file  string
	line  int
	pairs []pair
}

// reader collects records and problems over a file and what it includes.
type reader struct {
	records  []record
	problems Problems
	depth    int
}

func (r *reader) problem(file string, line int, format string, args ...any) {
	r.problems = append(r.problems, Note{file, line, fmt.Sprintf(format, args...)})
}

// file reads one file. Only a file that cannot be opened at the top is an error of its own.
func (r *reader) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		return &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	}
	if err == nil && st.Size() > maxFile {
		r.problem(path, 0, "the file has %d bytes, the limit is %d", st.Size(), maxFile)
		return nil
	}
	r.read(path, f)
	return nil
}

// read splits in into logical lines and takes them.
func (r *reader) read(path string, in io.Reader) {
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 0, 64<<10), maxLine)
	var buf strings.Builder
	start, n := 0, 0
	for sc.Scan() {
		n++
		text := strings.TrimRight(sc.Text(), "\r")
		if buf.Len() == 0 {
			start = n
		}
		text, more := strings.CutSuffix(stripComment(text), `\`)
		buf.WriteString(text)
		if buf.Len() > maxLine {
			r.problem(path, start, "the line is longer than %d bytes", maxLine)
			return
		}
		if more {
			buf.WriteByte(' ')
			continue
		}
		r.line(path, start, buf.String())
		buf.Reset()
		if len(r.records) > maxLines {
			r.problem(path, n, "more than %d lines", maxLines)
			return
		}
	}
	if err := sc.Err(); errors.Is(err, bufio.ErrTooLong) {
		r.problem(path, n+1, "the line is longer than %d bytes", maxLine)
	} else if err != nil {
		r.problem(path, n+1, "%v", err)
	}
	if buf.Len() > 0 {
		r.line(path, start, buf.String())
	}
}

// stripComment cuts an unquoted '#' and what follows; `\#` keeps it.
func stripComment(s string) string {
	quote := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quote = !quote
		case s[i] == '\\' && i+1 < len(s) && s[i+1] == '#':
			s = s[:i] + s[i+1:]
		case s[i] == '#' && !quote:
			return strings.TrimRight(s[:i], " \t")
		}
	}
	return strings.TrimRight(s, " \t")
}

// line takes one logical line: Include, or pairs.
func (r *reader) line(path string, n int, text string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return
	}
	if !utf8.ValidString(text) {
		at := firstBad(text)
		r.problem(path, n, "byte %#x after %q is not UTF-8", text[at], text[max(0, at-20):at])
		return
	}
	if word, rest, _ := strings.Cut(text, " "); strings.EqualFold(word, "include") {
		r.include(path, n, strings.TrimSpace(rest))
		return
	}
	pairs, err := splitPairs(text)
	if err != nil {
		r.problem(path, n, "%v", err)
		return
	}
	r.records = append(r.records, record{path, n, pairs})
}

// firstBad is where the first byte stands that is not UTF-8.
func firstBad(s string) int {
	for i, c := range s {
		if _, n := utf8.DecodeRuneInString(s[i:]); c == utf8.RuneError && n == 1 {
			return i
		}
	}
	return len(s) - 1
}

func (r *reader) include(path string, n int, name string) {
	name = strings.Trim(name, `"`)
	if name == "" {
		r.problem(path, n, "Include without a file name")
		return
	}
	if r.depth >= maxInclude {
		r.problem(path, n, "Include %s: more than %d files inside each other", name, maxInclude)
		return
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(path), name)
	}
	r.depth++
	if err := r.file(name); err != nil {
		r.problem(path, n, "Include: %v", err)
	}
	r.depth--
}

// splitPairs splits "Key=Value Key2="a b"" into pairs.
func splitPairs(s string) ([]pair, error) {
	var out []pair
	for {
		s = strings.TrimLeft(s, " \t")
		if s == "" {
			return out, nil
		}
		eq := strings.IndexByte(s, '=')
		word := s
		if i := strings.IndexAny(s, " \t"); i >= 0 {
			word = s[:i]
		}
		if eq < 0 || eq > len(word) && strings.TrimSpace(s[len(word):eq]) != "" {
			return nil, fmt.Errorf("%q is no Key=Value", word)
		}
		key, op := strings.TrimSpace(s[:eq]), "="
		if k, ok := strings.CutSuffix(key, "+"); ok {
			key, op = k, "+="
		}
		if key == "" || strings.ContainsAny(key, `"\`) {
			return nil, fmt.Errorf("%q is no Key=Value", word)
		}
		value, rest, err := cutValue(strings.TrimLeft(s[eq+1:], " \t"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out = append(out, pair{key, value, op})
		s = rest
	}
}

// cutValue takes a value up to a blank; "..." keeps blanks.
func cutValue(s string) (value, rest string, err error) {
	var b strings.Builder
	quote := false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"':
			quote = !quote
		case !quote && (c == ' ' || c == '\t'):
			return b.String(), s[i:], nil
		default:
			b.WriteByte(c)
		}
	}
	if quote {
		return "", "", fmt.Errorf("the quote is not closed")
	}
	return b.String(), "", nil
}
