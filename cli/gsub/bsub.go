package gsub

import (
	"slices"
	"strings"
)

// bsubOptions are the options of a #BSUB line that take a value, with what they mean here; "" is read some other
// way below, or passed over when it has no meaning here.
var bsubOptions = map[string]string{
	"-J": "", "-n": "", "-W": "", "-gpu": "", "-o": "--output=", "-oo": "--output=", "-e": "--error=", "-eo": "--error=", "-i": "--input=",
	"-q": "--partition=", "-P": "--account=", "-G": "", "-cwd": "--chdir=", "-u": "--mail-user=",
	"-m": "", "-M": "", "-R": "", "-w": "", "-b": "", "-t": "", "-c": "", "-v": "", "-F": "", "-S": "", "-T": "", "-D": "", "-C": "", "-E": "", "-L": "",
	"-a": "", "-app": "", "-env": "", "-g": "", "-sla": "", "-sp": "", "-U": "", "-Jd": "", "-k": "", "-p": "", "-is": "", "-data": "", "-network": "",
	"-ep": "", "-eptl": "", "-ext": "", "-Ep": "", "-outdir": "", "-pack": "", "-ptl": "", "-Q": "", "-We": "", "-Wm": "", "-Wt": "", "-f": "",
}

// bsubFlags are those without a value.
var bsubFlags = map[string]string{
	"-x": "--exclusive", "-H": "--hold", "-r": "--requeue", "-rn": "--no-requeue", "-K": "--wait", "-N": "--mail-type=END", "-B": "--mail-type=BEGIN",
}

// fromBSUB turns the words of a #BSUB line into ours, and names what it passed over. A script that serves several
// schedulers has lines of each, so what has no meaning here is no error.
func fromBSUB(words []string) (out, unread []string) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		if long, ok := bsubFlags[w]; ok {
			out = append(out, long)
			continue
		}
		name, value := bsubName(w)
		if name == "" {
			if strings.HasPrefix(w, "-") {
				unread = append(unread, w)
			}
			continue
		}
		if value == "" && i+1 < len(words) {
			i++
			value = words[i]
		}
		more := bsubValue(name, value)
		if len(more) == 0 {
			unread = append(unread, name)
		}
		out = append(out, more...)
	}
	return out, unread
}

// bsubName finds the option that the word is or, for those of one letter, begins with: "-n4".
func bsubName(w string) (name, value string) {
	if _, ok := bsubOptions[w]; ok {
		return w, ""
	}
	if len(w) > 2 && w[0] == '-' && strings.Contains("nJWoeqP", w[1:2]) && (w[1] != 'n' && w[1] != 'W' || '0' <= w[2] && w[2] <= '9') {
		return w[:2], w[2:]
	}
	return "", ""
}

func bsubValue(name, value string) []string {
	switch name {
	case "-J":
		return bsubJob(value)
	case "-n":
		least, _, _ := strings.Cut(value, ",")
		return []string{"--ntasks=" + least}
	case "-W":
		limit, _, _ := strings.Cut(value, "/") // the rest names a host whose speed is the measure
		if strings.Count(limit, ":") == 1 {
			limit += ":00" // hours and minutes, not minutes and seconds
		}
		return []string{"--time=" + limit}
	case "-gpu":
		for part := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ':' || r == ',' }) {
			if n, ok := strings.CutPrefix(part, "num="); ok {
				n, _, _ = strings.Cut(n, "/")
				return []string{"--gpus-per-node=" + n}
			}
		}
		return nil
	case "-o", "-oo", "-e", "-eo", "-i":
		value = strings.NewReplacer("%J", "%A", "%I", "%a").Replace(value)
	}
	if long := bsubOptions[name]; long != "" {
		return []string{long + value}
	}
	return nil
}

// bsubJob reads a name, or name[1-10:2]%3: an array.
func bsubJob(value string) []string {
	name, rest, array := strings.Cut(value, "[")
	var out []string
	if name != "" || !array {
		out = append(out, "--job-name="+name)
	}
	if list, limit, closed := strings.Cut(rest, "]"); array && closed {
		out = append(out, "--array="+list+limit)
	}
	return out
}

// unreadBSUB gathers over all lines what was passed over, each once.
func (s *scan) unreadBSUB() []string {
	var all []string
	for _, d := range s.directives {
		if d.kind == bsubLine {
			_, unread := fromBSUB(d.words)
			all = append(all, unread...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
