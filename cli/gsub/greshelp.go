package gsub

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/gres"
	"github.com/tensorgrid/tensorgrid/internal/hostlist"
)

// gresHelp is --gres=help: what the cluster's nodes have, one line for each name and type.
func gresHelp(env *program.Env) int {
	c, err := env.Connect()
	if err != nil {
		env.Refused("", err)
		return 1
	}
	defer c.Close()
	var res *ctldpb.ListNodesResponse
	err = c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
		res, err = cc.ListNodes(ctx, &ctldpb.ListNodesRequest{})
		return err
	})
	if err != nil {
		env.Refused("", err)
		return 1
	}
	kinds := gresKinds(res.Nodes)
	if len(kinds) == 0 {
		fmt.Fprintln(env.Stdout, "There are no generic resources on this cluster.")
		return 0
	}
	fmt.Fprintln(env.Stdout, "Valid gres options are:")
	for _, k := range kinds {
		fmt.Fprintf(env.Stdout, "%-24s at most %d on a node: %s\n", k.name+":N", k.most, hostlist.Compress(k.nodes))
	}
	return 0
}

// gresKind is one kind of resource and where it is.
type gresKind struct {
	name  string
	most  uint64
	nodes []string
}

func gresKinds(nodes []*ctldpb.Node) []gresKind {
	var kinds []gresKind
	for _, n := range nodes {
		items, err := gres.Parse(n.Gres)
		if err != nil {
			continue // of a release that writes more than this one reads
		}
		for _, it := range items {
			name := it.Name
			if it.Type != "" {
				name += ":" + it.Type
			}
			i := slices.IndexFunc(kinds, func(k gresKind) bool { return k.name == name })
			if i < 0 {
				i = len(kinds)
				kinds = append(kinds, gresKind{name: name})
			}
			kinds[i].most = max(kinds[i].most, it.Count)
			kinds[i].nodes = append(kinds[i].nodes, n.Name)
		}
	}
	slices.SortFunc(kinds, func(a, b gresKind) int { return strings.Compare(a.name, b.name) })
	return kinds
}
