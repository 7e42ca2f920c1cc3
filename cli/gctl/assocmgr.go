package gctl

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// shownLimits are the limits of an association that its record shows, four on a line.
var shownLimits = []string{
	"GrpJobs", "GrpSubmitJobs", "GrpWall", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "MaxJobs", "MaxSubmitJobs", "MaxWallDurationPerJob", "MaxTRESPerJob",
	"MaxTRESPerNode", "MaxTRESMinsPerJob",
}

// showAssociations prints each association with its shares, usage and limits: the short form of Slurm's record.
func (c *call) showAssociations([]string) int {
	if !c.connect() {
		return 1
	}
	var shares *ctldpb.ListSharesResponse
	var list *ctldpb.ListAccountingResponse
	read := &ctldpb.ReadOptions{Stale: c.stale}
	err := c.client.Do(background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		if list, err = cc.ListAccounting(ctx, &ctldpb.ListAccountingRequest{Read: read, Entity: "association"}); err == nil {
			shares, err = cc.ListShares(ctx, &ctldpb.ListSharesRequest{Read: read, All: true})
		}
		return err
	})
	if err != nil {
		return c.failed("slurm_load_assoc_mgr_info", err)
	}
	use := map[[3]string]*ctldpb.ShareRow{}
	for _, s := range shares.Rows {
		use[[3]string{s.Account, s.User, s.Partition}] = s
	}
	out := bufio.NewWriter(c.env.Stdout)
	defer out.Flush()
	fmt.Fprint(out, "Current Association Manager state\n\nAssociation Records\n\n")
	for _, a := range list.Rows {
		f := a.Fields
		c.associationRecord(f, use[[3]string{f["account"], f["user"], f["partition"]}]).write(out, c.oneLine)
	}
	if len(list.Rows) == 0 {
		fmt.Fprintln(out, "No associations currently cached in Slurm.")
	}
	return 0
}

func (c *call) associationRecord(f map[string]string, s *ctldpb.ShareRow) *record {
	r := &record{}
	r.line(kv("ClusterName", c.client.Cluster()), kv("Account", f["account"]), kv("UserName", f["user"]), kv("Partition", f["partition"]),
		kv("Priority", render.Or(f["priority"], "0")), kv("ID", f["id"]))
	if s != nil {
		r.line(kv("SharesRaw/Norm/Level/Factor", strings.Join([]string{render.Or(f["fairshare"], "1"), decimal(s.NormShares), decimal(s.LevelFs), decimal(s.FairShare)}, "/")))
		r.line(kv("UsageRaw/Norm/Efctv", fmt.Sprintf("%d/%s/%s", s.RawUsage, decimal(s.NormUsage), decimal(s.EffectiveUsage))), kv("TRESRunMins", render.Or(s.TresRunMins, "N")))
	}
	r.line(kv("ParentAccount", f["parentname"]), kv("DefaultQOS", f["defaultqos"]), kv("QOS", f["qos"]))
	for from := 0; from < len(shownLimits); from += 4 {
		var words []string
		for _, k := range shownLimits[from : from+4] {
			words = append(words, kv(k, render.Or(f[strings.ToLower(k)], "N")))
		}
		r.line(words...)
	}
	return r
}

func decimal(v float64) string {
	switch {
	case math.IsNaN(v):
		return "N/A"
	case math.IsInf(v, 0):
		return "inf"
	}
	return fmt.Sprintf("%.2f", v)
}
