package gacct

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/tensorgrid/tensorgrid/api/ctldpb"
	"github.com/tensorgrid/tensorgrid/cli/client"
	"github.com/tensorgrid/tensorgrid/cli/program"
	"github.com/tensorgrid/tensorgrid/cli/render"
)

// texts prints the script or the environment of each job, an array's once.
func (q *query) texts(env *program.Env, c *client.Client, w io.Writer, jobs []*ctldpb.Job) int {
	code := 0
	shown := map[uint32]bool{}
	for _, j := range jobs {
		id := render.JobID(j, 0)
		if j.ArrayJobId != 0 {
			if shown[j.ArrayJobId] {
				continue
			}
			shown[j.ArrayJobId] = true
			id = fmt.Sprint(j.ArrayJobId)
		}
		var res *ctldpb.GetScriptResponse
		err := c.Do(context.Background(), func(ctx context.Context, cc ctldpb.ControllerClient) (err error) {
			res, err = cc.GetScript(ctx, &ctldpb.GetScriptRequest{JobId: j.JobId, Env: q.environ})
			return err
		})
		if err != nil {
			env.Refused("job "+id+": ", err)
			code = 1
			continue
		}
		title, data := "Batch Script for "+id, res.Data
		if q.environ {
			title, data = "Environment used for "+id+" (must be batch to display)", bytes.ReplaceAll(data, []byte{0}, []byte{'\n'})
		}
		fmt.Fprintf(w, "%s\n%s\n%s", title, strings.Repeat("-", 80), data)
		if !bytes.HasSuffix(data, []byte{'\n'}) {
			fmt.Fprintln(w)
		}
	}
	return code
}
