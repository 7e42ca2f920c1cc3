package partitions

import (
	"strings"

	"github.com/tensorgrid/tensorgrid/internal/job"
)

// tresWord is how reasons call a resource: in most of them, and (memory) in those of a QOS.
func tresWord(prefix, name string) string {
	switch family, _, _ := strings.Cut(name, "/"); family {
	case "cpu":
		return "Cpu"
	case "mem":
		if prefix == "QOS" {
			return "Memory"
		}
		return "Mem"
	case "node":
		return "Node"
	case "gres":
		return "GRES"
	case "license":
		return "License"
	case "billing":
		return "Billing"
	case "energy":
		return "Energy"
	case "bb":
		return "BB"
	}
	return "Unknown"
}

// tresReason is Slurm's word for a limit on a resource: prefix QOS or Assoc, limit by its full name. Those of cpu, mem and
// node are irregular, as Slurm's are.
func tresReason(prefix, limit, name string) job.Reason {
	word, end := tresWord(prefix, name), ""
	switch word {
	case "Cpu", "Node":
		end = "Limit"
	}
	minutes, minutesEnd := word, ""
	if word == "Cpu" { // CPU in a group's minutes only
		minutes, minutesEnd = "CPU", "Limit"
	}
	switch limit {
	case "GrpTRES":
		if name == "mem" {
			word, end = "Mem", "Limit"
		}
		return job.LimitReason(prefix, "Grp"+word+end)
	case "GrpTRESMins":
		return job.LimitReason(prefix, "Grp"+minutes+"Minutes"+minutesEnd)
	case "GrpTRESRunMins":
		return job.LimitReason(prefix, "Grp"+minutes+"RunMinutes"+minutesEnd)
	case "MaxTRESPerJob":
		return job.LimitReason(prefix, "Max"+word+"PerJob"+end)
	case "MaxTRESPerNode":
		return job.LimitReason(prefix, "Max"+word+"PerNode")
	case "MaxTRESMinsPerJob":
		return job.LimitReason(prefix, "Max"+word+"MinutesPerJob"+minutesEnd)
	case "MaxTRESPerUser":
		return job.LimitReason(prefix, "Max"+word+"PerUser"+end)
	case "MaxTRESPerAccount":
		return job.Reason("Max" + word + "PerAccount")
	case "MaxTRESRunMinsPerUser":
		return job.Reason("Max" + word + "RunMinsPerUser")
	case "MaxTRESRunMinsPerAccount":
		return job.Reason("Max" + word + "RunMinsPerAccount")
	case "MinTRESPerJob":
		if name == "cpu" {
			return job.LimitReason(prefix, "MinCpuNotSatisfied")
		}
		return job.LimitReason(prefix, "Min"+word)
	}
	return job.LimitReason(prefix, limit)
}
