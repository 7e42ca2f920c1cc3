package partitions

import (
	"strings"
	"testing"
)

// TestReasonWords holds the word of each limit on each resource against those that Slurm prints.
func TestReasonWords(t *testing.T) {
	for _, c := range []struct{ prefix, limit, words string }{
		{"Assoc", "GrpTRES", "AssocGrpCpuLimit AssocGrpMemLimit AssocGrpNodeLimit AssocGrpGRES AssocGrpLicense AssocGrpBilling AssocGrpEnergy AssocGrpBB AssocGrpUnknown"},
		{"QOS", "GrpTRES", "QOSGrpCpuLimit QOSGrpMemLimit QOSGrpNodeLimit QOSGrpGRES QOSGrpLicense QOSGrpBilling QOSGrpEnergy QOSGrpBB QOSGrpUnknown"},
		{"Assoc", "GrpTRESMins", "AssocGrpCPUMinutesLimit AssocGrpMemMinutes AssocGrpNodeMinutes AssocGrpGRESMinutes AssocGrpLicenseMinutes AssocGrpBillingMinutes AssocGrpEnergyMinutes AssocGrpBBMinutes AssocGrpUnknownMinutes"},
		{"QOS", "GrpTRESMins", "QOSGrpCPUMinutesLimit QOSGrpMemoryMinutes QOSGrpNodeMinutes QOSGrpGRESMinutes QOSGrpLicenseMinutes QOSGrpBillingMinutes QOSGrpEnergyMinutes QOSGrpBBMinutes QOSGrpUnknownMinutes"},
		{"Assoc", "GrpTRESRunMins", "AssocGrpCPURunMinutesLimit AssocGrpMemRunMinutes AssocGrpNodeRunMinutes AssocGrpGRESRunMinutes AssocGrpLicenseRunMinutes AssocGrpBillingRunMinutes AssocGrpEnergyRunMinutes AssocGrpBBRunMinutes AssocGrpUnknownRunMinutes"},
		{"QOS", "GrpTRESRunMins", "QOSGrpCPURunMinutesLimit QOSGrpMemoryRunMinutes QOSGrpNodeRunMinutes QOSGrpGRESRunMinutes QOSGrpLicenseRunMinutes QOSGrpBillingRunMinutes QOSGrpEnergyRunMinutes QOSGrpBBRunMinutes QOSGrpUnknownRunMinutes"},
		{"Assoc", "MaxTRESPerJob", "AssocMaxCpuPerJobLimit AssocMaxMemPerJob AssocMaxNodePerJobLimit AssocMaxGRESPerJob AssocMaxLicensePerJob AssocMaxBillingPerJob AssocMaxEnergyPerJob AssocMaxBBPerJob AssocMaxUnknownPerJob"},
		{"QOS", "MaxTRESPerJob", "QOSMaxCpuPerJobLimit QOSMaxMemoryPerJob QOSMaxNodePerJobLimit QOSMaxGRESPerJob QOSMaxLicensePerJob QOSMaxBillingPerJob QOSMaxEnergyPerJob QOSMaxBBPerJob QOSMaxUnknownPerJob"},
		{"Assoc", "MaxTRESPerNode", "AssocMaxCpuPerNode AssocMaxMemPerNode - AssocMaxGRESPerNode - AssocMaxBillingPerNode AssocMaxEnergyPerNode AssocMaxBBPerNode AssocMaxUnknownPerNode"},
		{"QOS", "MaxTRESPerNode", "QOSMaxCpuPerNode QOSMaxMemoryPerNode - QOSMaxGRESPerNode - QOSMaxBillingPerNode QOSMaxEnergyPerNode - QOSMaxUnknownPerNode"},
		{"Assoc", "MaxTRESMinsPerJob", "AssocMaxCpuMinutesPerJobLimit AssocMaxMemMinutesPerJob AssocMaxNodeMinutesPerJob AssocMaxGRESMinutesPerJob AssocMaxLicenseMinutesPerJob AssocMaxBillingMinutesPerJob AssocMaxEnergyMinutesPerJob AssocMaxBBMinutesPerJob AssocMaxUnknownMinutesPerJob"},
		{"QOS", "MaxTRESMinsPerJob", "QOSMaxCpuMinutesPerJobLimit QOSMaxMemoryMinutesPerJob QOSMaxNodeMinutesPerJob QOSMaxGRESMinutesPerJob QOSMaxLicenseMinutesPerJob QOSMaxBillingMinutesPerJob QOSMaxEnergyMinutesPerJob - QOSMaxUnknownMinutesPerJob"},
		{"QOS", "MaxTRESPerUser", "QOSMaxCpuPerUserLimit QOSMaxMemoryPerUser QOSMaxNodePerUserLimit QOSMaxGRESPerUser QOSMaxLicensePerUser QOSMaxBillingPerUser QOSMaxEnergyPerUser QOSMaxBBPerUser QOSMaxUnknownPerUser"},
		{"QOS", "MaxTRESPerAccount", "MaxCpuPerAccount MaxMemoryPerAccount MaxNodePerAccount MaxGRESPerAccount MaxLicensePerAccount MaxBillingPerAccount MaxEnergyPerAccount MaxBBPerAccount MaxUnknownPerAccount"},
		{"QOS", "MaxTRESRunMinsPerUser", "MaxCpuRunMinsPerUser MaxMemoryRunMinsPerUser MaxNodeRunMinsPerUser MaxGRESRunMinsPerUser MaxLicenseRunMinsPerUser MaxBillingRunMinsPerUser MaxEnergyRunMinsPerUser MaxBBRunMinsPerUser MaxUnknownRunMinsPerUser"},
		{"QOS", "MaxTRESRunMinsPerAccount", "MaxCpuRunMinsPerAccount MaxMemoryRunMinsPerAccount MaxNodeRunMinsPerAccount MaxGRESRunMinsPerAccount MaxLicenseRunMinsPerAccount MaxBillingRunMinsPerAccount MaxEnergyRunMinsPerAccount MaxBBRunMinsPerAccount MaxUnknownRunMinsPerAccount"},
		{"QOS", "MinTRESPerJob", "QOSMinCpuNotSatisfied QOSMinMemory QOSMinNode QOSMinGRES QOSMinLicense QOSMinBilling QOSMinEnergy QOSMinBB QOSMinUnknown"},
	} {
		words := strings.Fields(c.words)
		for i, name := range []string{"cpu", "mem", "node", "gres/gpu", "license/m", "billing", "energy", "bb/x", "pages"} {
			if got := string(tresReason(c.prefix, c.limit, name)); words[i] != "-" && got != words[i] {
				t.Errorf("%s %s=%s: %s, want %s", c.prefix, c.limit, name, got, words[i])
			}
		}
	}
}
