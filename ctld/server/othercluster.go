package server

import (
	"fmt"
	"strings"

	"github.com/tensorgrid/tensorgrid/accounting"
	"github.com/tensorgrid/tensorgrid/api/ctldpb"
)

// otherCluster refuses a command on the accounts of another cluster: this one has its own alone, and cluster= would
// otherwise be passed over.
func (s *Server) otherCluster(lists ...[]accounting.Clause) *ctldpb.Refusal {
	this := s.Config().ClusterName
	for _, list := range lists {
		for _, c := range list {
			if name := strings.ToLower(c.Name); name != "cluster" && name != "clusters" || this == "" {
				continue
			}
			for name := range strings.SplitSeq(c.Value, ",") {
				if name = strings.TrimSpace(name); name != "" && name != this {
					return refusalOf(codeInvalid, fmt.Sprintf("there is no cluster %q here; this is %s", name, this))
				}
			}
		}
	}
	return nil
}
