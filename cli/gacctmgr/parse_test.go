package gacctmgr

import (
	"strings"
	"testing"
)

// FuzzParse: whatever is typed becomes clauses with a known key or an error, never a panic.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"modify|user|bob where account=x set MaxJobs=5 qos+=high", "add|qos|q grpcpus=4 flags-=x", "list|assoc|tree format=a%5,b where user=bob", "delete|user|=", "add|account|a ''=b -=c +=", "list|user|format="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		verb, rest, _ := strings.Cut(s, "|")
		name, line, _ := strings.Cut(rest, "|")
		words, err := splitWords(line)
		if err != nil {
			return
		}
		e, err := findEntity(name)
		if err != nil {
			return
		}
		cmd, err := e.parse(verb, words)
		if err != nil {
			return
		}
		for _, c := range append(cmd.where, cmd.set...) {
			if c.Name != strings.ToLower(c.Name) || c.Name == "" || c.Op != "=" && c.Op != "+=" && c.Op != "-=" {
				t.Fatalf("%q: clause %v", s, c)
			}
		}
		if cmd.format != "" {
			parseFormat(cmd.format)
		}
	})
}

// FuzzDump: a flat file of any kind gives requests or names its line.
func FuzzDump(f *testing.F) {
	for _, s := range []string{"Cluster - 'lab'\nParent - 'root'\nAccount - 'a':Fairshare='1':GrpTRES='cpu=1,gres/gpu:a=2'\nUser - 'u':AdminLevel='None'\n", "User - '':x", "# c\nQOS - 'q':Flags", " - \n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseDump(strings.NewReader(s))
		if err != nil {
			return
		}
		for _, r := range list {
			if len(r.Set) == 0 || r.Set[0].Name != "name" || r.Set[0].Value == "" {
				t.Fatalf("%q: %v", s, r)
			}
		}
	})
}
