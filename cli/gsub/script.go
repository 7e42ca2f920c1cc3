package gsub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// textError is an error with Slurm's words over several lines; exit code 1.
type textError struct{ text string }

func (e *textError) Error() string { return e.text }

// loadScript reads the script that the operands name, standard input, or what --wrap says.
func (r *request) loadScript(operands []string) error {
	switch {
	case r.wrapped && len(operands) > 0:
		return &textError{"Script arguments are not permitted with the --wrap option"}
	case r.wrapped:
		r.spec.Script = []byte("#!/bin/sh\n# Written for --wrap.\n\n" + r.wrap + "\n")
		return r.checkScript("wrap")
	case len(operands) == 0:
		b, err := io.ReadAll(io.LimitReader(r.env.Stdin, job.MaxScript+1))
		if err != nil {
			return &textError{fmt.Sprintf("Unable to read the script from standard input: %v", err)}
		}
		r.spec.Script = b
		return r.checkScript(r.env.Name)
	}
	path, err := r.findScript(operands[0])
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return &textError{"Unable to open file " + operands[0]}
	}
	defer f.Close()
	if r.spec.Script, err = io.ReadAll(io.LimitReader(f, job.MaxScript+1)); err != nil {
		return &textError{fmt.Sprintf("Unable to read file %s: %v", operands[0], err)}
	}
	r.spec.Command, r.spec.Args = path, operands[1:]
	return r.checkScript(filepath.Base(path))
}

// findScript looks where Slurm looks: as it is when it begins with . or /, else the work folder and PATH.
func (r *request) findScript(name string) (string, error) {
	dir := r.env.Dir
	if filepath.IsAbs(name) {
		return name, nil
	}
	here := filepath.Join(dir, name)
	if strings.HasPrefix(name, ".") || isFile(here) {
		return here, nil
	}
	if strings.Contains(name, "/") {
		return here, nil
	}
	for d := range strings.SplitSeq(r.env.Getenv("PATH"), ":") {
		if d == "" {
			continue
		}
		if p := filepath.Join(d, name); isFile(p) {
			return p, nil
		}
	}
	return "", &textError{"Unable to open file " + name}
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// checkScript refuses what no node could run, in Slurm's words, and gives the job its default name.
func (r *request) checkScript(name string) error {
	s := r.spec.Script
	switch {
	case len(s) > job.MaxScript:
		return &textError{fmt.Sprintf("Batch script is over the limit of %d bytes", job.MaxScript)}
	case len(s) == 0:
		return &textError{"Batch script is empty!"}
	case len(bytes.TrimSpace(s)) == 0:
		return &textError{"Batch script contains only whitespace!"}
	case !bytes.HasPrefix(s, []byte("#!")):
		return &textError{"This does not look like a batch script.  The first\nline must start with #! followed by the path to an interpreter.\nFor instance: #!/bin/sh"}
	case bytes.IndexByte(s, 0) >= 0:
		return &textError{"The batch script contains the NULL character, which is not allowed."}
	case bytes.Contains(s, []byte("\r\n")):
		return &textError{"Batch script contains DOS line breaks (\\r\\n)\ninstead of expected UNIX line breaks (\\n)."}
	}
	r.scriptGiven = name
	return nil
}

// adviseOnScript gives the warnings about directives.
func (r *request) adviseOnScript(s *scan) {
	if len(s.late) > 0 {
		r.advise("line %d: a directive below the first command is not read", s.late[0])
	}
	for _, d := range s.directives {
		if d.kind == oldLine {
			r.nag("line %d: #SLURM is an old word for #SBATCH; it is read, but write #SBATCH", d.line)
			break
		}
	}
	if unread := s.unreadBSUB(); len(unread) > 0 && !r.ignorePBS {
		r.advise("of the #BSUB lines these options have no meaning here: %s", strings.Join(unread, " "))
	}
}

// adviseOnOutput warns of an output folder that is not there: the job would fail at once.
func (r *request) adviseOnOutput() {
	for _, p := range []string{r.spec.StdOut, r.spec.StdErr} {
		dir := filepath.Dir(p)
		if p == "" || strings.ContainsAny(dir, `%\`) {
			continue
		}
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(r.spec.WorkDir, dir)
		}
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			r.advise("the output folder %s does not exist; the job fails if it is not there when it starts", dir)
			return
		}
	}
}

// nag is advice that Slurm calls an error.
func (r *request) nag(format string, args ...any) {
	if !r.quiet && !r.env.SharedOutput {
		r.env.Errorf(format, args...)
	}
}

// advise prints a warning unless a program reads both streams as one.
func (r *request) advise(format string, args ...any) {
	if !r.quiet && !r.env.SharedOutput {
		r.env.Warnf(format, args...)
	}
}
