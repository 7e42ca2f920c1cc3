package gsub

import "strings"

// pbsOptions are the options of a #PBS line that mean the same here. Those with "" are passed over.
var pbsOptions = map[byte]string{
	'A': "--account=", 'J': "--array=", 'M': "--mail-user=", 'N': "--job-name=", 'W': "", 'a': "", 'c': "", 'e': "--error=", 'j': "", 'k': "",
	'm': "", 'o': "--output=", 'p': "", 'q': "--partition=", 't': "--array=", 'u': "", 'v': "", 'S': "", 'l': "", 'r': "",
}

// pbsMail turns the letters of -m into mail types.
var pbsMail = map[rune]string{'a': "FAIL", 'b': "BEGIN", 'e': "END", 'n': "NONE"}

// fromPBS turns the words of a #PBS line into ours. A script that serves several schedulers has both kinds, so
// what has no meaning here is passed over.
func fromPBS(words []string) []string {
	var out []string
	for i := 0; i < len(words); i++ {
		w := words[i]
		if len(w) < 2 || w[0] != '-' {
			continue
		}
		c, value := w[1], w[2:]
		long, valued := pbsOptions[c]
		if !valued {
			if c == 'h' {
				out = append(out, "--hold")
			}
			continue
		}
		if value == "" && i+1 < len(words) {
			i++
			value = words[i]
		}
		switch c {
		case 'l':
			out = append(out, pbsResources(value)...)
		case 'm':
			var types []string
			for _, r := range value {
				if t := pbsMail[r]; t != "" {
					types = append(types, t)
				}
			}
			if len(types) > 0 {
				out = append(out, "--mail-type="+strings.Join(types, ","))
			}
		case 'r':
			if value == "n" {
				out = append(out, "--no-requeue")
			} else {
				out = append(out, "--requeue")
			}
		case 'o', 'e':
			if host, path, ok := strings.Cut(value, ":"); ok && !strings.Contains(host, "/") {
				value = path
			}
			out = append(out, long+value)
		default:
			if long != "" {
				out = append(out, long+value)
			}
		}
	}
	return out
}

// pbsResources reads nodes=2:ppn=4,walltime=1:00:00,mem=4gb and select=2:ncpus=4.
func pbsResources(list string) []string {
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		for i, word := range strings.Split(part, ":") {
			name, value, has := strings.Cut(word, "=")
			if strings.HasPrefix(part, "walltime=") {
				if i == 0 {
					out = append(out, "--time="+strings.TrimPrefix(part, "walltime="))
				}
				continue
			}
			if !has || value == "" {
				continue
			}
			switch name {
			case "nodes", "select":
				if strings.Trim(value, "0123456789") == "" {
					out = append(out, "--nodes="+value)
				}
			case "ppn", "mpiprocs":
				out = append(out, "--ntasks-per-node="+value)
			case "procs":
				out = append(out, "--ntasks="+value)
			case "ncpus":
				out = append(out, "--cpus-per-task="+value)
			case "mem":
				out = append(out, "--mem="+value)
			case "ngpus", "gpus":
				out = append(out, "--gpus-per-node="+value)
			}
		}
	}
	return out
}
