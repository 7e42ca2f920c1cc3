package gsub

import (
	"fmt"
	"strings"
	"testing"
)

func scanText(s *scan) string {
	var parts []string
	for _, d := range s.directives {
		parts = append(parts, fmt.Sprintf("%d%q", d.line, d.words))
	}
	return strings.Join(parts, " ") + fmt.Sprintf(" late=%v", s.late)
}

func TestScanScript(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"the first command ends them", "#!/bin/sh\n#SBATCH -t 11\necho x\n#SBATCH -t 22\n", `2["-t" "11"] late=[4]`},
		{"also set -e", "#!/bin/sh\nset -e\n#SBATCH -t 18", ` late=[3]`},
		{"blank lines and comments go on", "#!/bin/sh\n\n# hello\n \t\n#SBATCH -H\n", `5["-H"] late=[]`},
		{"trailing comment", "#!/bin/sh\n#SBATCH --time=36 # comment\n", `2["--time=36"] late=[]`},
		{"quotes", "#!/bin/sh\n#SBATCH --job-name=\"Big simulation\" -A'a b'\n", `2["--job-name=Big simulation" "-Aa b"] late=[]`},
		{"a hash in quotes stays", "#!/bin/sh\n#SBATCH -J 'a#b' #x\n", `2["-J" "a#b"] late=[]`},
		{"backslashes", "#!/bin/sh\n#SBATCH -o \"/dir/a\\ b\" -J a\\ b\n", `2["-o" "/dir/a b" "-J" "a b"] late=[]`},
		{"tab and several", "#!/bin/bash\n#SBATCH\t--comment=tab\n#SBATCH -N 2 --exclusive\n", `2["--comment=tab"] 3["-N" "2" "--exclusive"] late=[]`},
		{"not at the start, doubled, with a blank", "#!/bin/sh\n##SBATCH -t 9\n# SBATCH -t 8\n #SBATCH -t 7\n", ` late=[]`},
		{"both words", "#!/bin/sh\n#GSUB -t 1\n#SBATCH -t 2\n", `2["-t" "1"] 3["-t" "2"] late=[]`},
		{"no line end at the end", "#!/bin/sh\n#SBATCH -H", `2["-H"] late=[]`},
		{"PBS lines, until the first command", "#!/bin/sh\n#PBS -N x\n#PBSPro\ntrue\n#PBS -N y\n", `2["-N" "x"] late=[]`},
		{"empty quotes are a word", "#!/bin/sh\n#SBATCH -J ''\n", `2["-J" ""] late=[]`},
	} {
		s, err := scanScript([]byte(c.script))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := scanText(s); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

func TestScanErrors(t *testing.T) {
	for name, script := range map[string]string{
		"open quote": "#!/bin/sh\n#SBATCH -J \"abc\n",
		"words":      "#!/bin/sh\n#SBATCH" + strings.Repeat(" -H", maxDirectiveWords+2) + "\n",
		"lines":      "#!/bin/sh\n" + strings.Repeat("#SBATCH -H\n", maxDirectiveLines+1),
	} {
		if _, err := scanScript([]byte(script)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := scanScript([]byte("#!/bin/sh\n" + strings.Repeat("#SBATCH -H\n", maxDirectiveLines))); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

func TestParseExport(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"ALL,Z=1", `true [{Z 1 true}]`}, {"Z=1,FOO", `false [{Z 1 true} {FOO  false}]`}, {"FOO,ALL", `true [{FOO  false}]`},
		{"ALL,Z=a,b", `true [{Z a true} {b  false}]`}, {"ALL,Z=a b", `true [{Z a b true}]`}, {"ALL,Z='a,b'", `true [{Z a,b true}]`},
		{`Z="x'y"`, `false [{Z x'y true}]`}, {"A=,B==", `false [{A  true} {B = true}]`},
	} {
		items, all, err := parseExport(c.in)
		if got := fmt.Sprintf("%t %v", all, items); err != nil || got != c.want {
			t.Errorf("%s: got %s, %v; want %s", c.in, got, err, c.want)
		}
	}
	for _, bad := range []string{"=1", "A='x", "ALL,=2"} {
		if _, _, err := parseExport(bad); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

func TestFromPBS(t *testing.T) {
	for in, want := range map[string]string{
		"-N name -q long":                    "--job-name=name --partition=long",
		"-l nodes=2:ppn=4,walltime=1:30:00":  "--nodes=2 --ntasks-per-node=4 --time=1:30:00",
		"-lselect=1:ncpus=8:mem=4gb:ngpus=2": "--nodes=1 --cpus-per-task=8 --mem=4gb --gpus-per-node=2",
		"-l nodes=host1:ppn=2":               "--ntasks-per-node=2",
		"-o host:/tmp/o -e /tmp/e -j oe -V":  "--output=/tmp/o --error=/tmp/e",
		"-m abe -M a@b -r n -h":              "--mail-type=FAIL,BEGIN,END --mail-user=a@b --no-requeue --hold",
		"-J 1-10 -W x=y -v A=1 -Z":           "--array=1-10",
		"-N":                                 "--job-name=",
	} {
		if got := strings.Join(fromPBS(strings.Fields(in)), " "); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestOwned(t *testing.T) {
	for name, want := range map[string]bool{
		"SLURM_JOB_ID": true, "SLURM_NTASKS": true, "SLURM_NTASKS_PER_NODE": true, "SLURM_CPUS_PER_TASK": true, "SLURM_ARRAY_TASK_ID": true,
		"SLURMD_NODENAME": true, "SLURM_CONF": false, "SLURM_CPU_BIND": false, "SLURM_TIME_FORMAT": false, "PATH": false, "SLURM_MPI_TYPE": false,
	} {
		if owned(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}

func TestSwitchedOn(t *testing.T) {
	for v, want := range map[string]bool{"": true, "yes": true, "YES": true, "1": true, "10": true, "0": false, "00": false, "no": false, "-1": false} {
		if switchedOn(v) != want {
			t.Errorf("%q: %t", v, !want)
		}
	}
}

// FuzzScanScript: nothing panics, and no directive comes after the first command.
func FuzzScanScript(f *testing.F) {
	for _, s := range []string{"#!/bin/sh\n#SBATCH -t 1 # x\n", "#SBATCH 'a b' \"c\\\" d\"\ntrue\n#GSUB -H", "#SBATCH \\", "\n\n#SBATCH\r\n", "#SBATCH -J '"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		s, err := scanScript(script)
		if err != nil {
			return
		}
		last := 0
		for _, d := range s.directives {
			if d.line <= last {
				t.Fatalf("line %d after %d", d.line, last)
			}
			last = d.line
		}
		if len(s.late) > 0 && s.late[0] <= last {
			t.Fatalf("line %d counts as late, %d does not", s.late[0], last)
		}
	})
}

// FuzzParseExport: what is taken has a name.
func FuzzParseExport(f *testing.F) {
	for _, s := range []string{"ALL,Z=1", "Z='a,b',C", "NONE", "=", "'", ",,,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		items, _, err := parseExport(s)
		if err != nil {
			return
		}
		for _, it := range items {
			if it.name == "" || strings.Contains(it.name, "=") {
				t.Fatalf("name %q", it.name)
			}
		}
	})
}

func TestFromBSUB(t *testing.T) {
	for in, want := range map[string]string{
		"-J name -q long -n4 -W90":       "--job-name=name --partition=long --ntasks=4 --time=90 []",
		"-J a[1-9:2]%3":                  "--job-name=a --array=1-9:2%3 []",
		"-J [1-4]":                       "--array=1-4 []",
		"-n 2,8 -W 2:30/host1 -x -H":     "--ntasks=2 --time=2:30:00 --exclusive --hold []",
		"-oo %J.o -eo %J_%I.e -cwd /tmp": "--output=%A.o --error=%A_%a.e --chdir=/tmp []",
		"-gpu num=2/task:mode=x -P lab":  "--gpus-per-node=2 --account=lab []",
		"-gpu mode=x -outdir d -We 5 -Z": " [-gpu -outdir -We -Z]",
		"-R span[hosts=1] word -rn -N":   "--no-requeue --mail-type=END [-R]",
		"-n":                             "--ntasks= []",
	} {
		out, unread := fromBSUB(strings.Fields(in))
		if got := fmt.Sprint(strings.Join(out, " "), " ", unread); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

// FuzzFromBSUB: whatever stands on such a line becomes long options only.
func FuzzFromBSUB(f *testing.F) {
	for _, s := range []string{"-J a[1-3]%2 -n 4", "-W", "-gpu num=", "-oo x -e", "- -- -Z", "-J [ -W /:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out, unread := fromBSUB(strings.Fields(s))
		for _, w := range out {
			if !strings.HasPrefix(w, "--") {
				t.Fatalf("%q", w)
			}
		}
		for _, w := range unread {
			if !strings.HasPrefix(w, "-") {
				t.Fatalf("%q", w)
			}
		}
	})
}

// FuzzFromPBS: whatever stands on such a line becomes long options only.
func FuzzFromPBS(f *testing.F) {
	for _, s := range []string{"-l nodes=2:ppn=4", "-l", "-m abe", "-N a -o b:c", "- -- -Z", "-lwalltime=:,select=="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		words := strings.Fields(s)
		for _, w := range fromPBS(words) {
			if !strings.HasPrefix(w, "--") {
				t.Fatalf("%q", w)
			}
		}
	})
}
