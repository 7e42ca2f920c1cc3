// Package plot draws a replay: the queue and the CPUs in use over time, and how long jobs waited by their size, as SVG and
// as PNG.
package plot

import (
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/tensorgrid/tensorgrid/ctld/gsim/replay"
)

// Size of a picture, and how many steps a line over time has at most: more would hide each other.
const (
	Width    = 22 * vg.Centimeter
	Height   = 11 * vg.Centimeter
	MaxSteps = 240
)

// colours of several replays in one picture, readable without seeing colours: from dark to light.
var colours = []color.RGBA{{0x1b, 0x4f, 0x8f, 0xff}, {0xc4, 0x51, 0x1f, 0xff}, {0x2f, 0x85, 0x5a, 0xff}, {0x8a, 0x5f, 0xb8, 0xff}, {0x80, 0x80, 0x80, 0xff}}

// MaxReplays is how many replays one picture holds.
var MaxReplays = len(colours)

// Write draws the replays, of one trace, into folder: queue, utilisation and wait, each as .svg and .png. It gives the
// names of the files.
func Write(folder string, list []*replay.Result) ([]string, error) {
	if len(list) > MaxReplays {
		return nil, fmt.Errorf("%d replays do not fit into one picture: at most %d", len(list), MaxReplays)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	var files []string
	for _, p := range []struct {
		name string
		draw func([]*replay.Result) (*plot.Plot, error)
	}{{"queue", queue}, {"utilisation", utilisation}, {"wait", wait}} {
		pic, err := p.draw(list)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		for _, kind := range []string{".svg", ".png"} {
			file := filepath.Join(folder, p.name+kind)
			if err := save(pic, file, kind[1:]); err != nil {
				return nil, err
			}
			files = append(files, file)
		}
	}
	return files, nil
}

// save draws a picture with a margin, so that the last label is not cut off.
func save(p *plot.Plot, file, kind string) (err error) {
	c, err := draw.NewFormattedCanvas(Width, Height, kind)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	const margin = 14
	p.Draw(draw.Crop(draw.New(c), margin, -2*margin, margin/2, -margin/2))
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = c.WriteTo(f)
	return err
}

// blank is a picture with its titles.
func blank(list []*replay.Result, what, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text = what + ": " + list[0].Summary.Trace
	p.Title.Padding = vg.Points(6)
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Padding, p.Y.Padding = vg.Points(3), vg.Points(3)
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(2)
	p.BackgroundColor = color.White
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe4}, color.Gray{0xe4}
	p.Add(grid)
	return p
}

// overTime draws one line a replay of a figure over time, as means over equal steps.
func overTime(p *plot.Plot, list []*replay.Result, of func(*replay.Sample) float64) error {
	for i, r := range list {
		line, err := plotter.NewLine(steps(r.Samples, of))
		if err != nil {
			return err
		}
		line.Color, line.Width = colours[i], vg.Points(1)
		line.StepStyle = plotter.PostStep
		p.Add(line)
		p.Legend.Add(r.Summary.Policy, line)
	}
	p.X.Min, p.Y.Min = 0, 0
	p.Y.Max *= 1.2 // room for the legend
	return nil
}

// steps are a figure's means over at most MaxSteps equal steps of time, in days from the first sample.
func steps(s []replay.Sample, of func(*replay.Sample) float64) plotter.XYs {
	first, last := s[0].At, s[len(s)-1].At
	span := max(last-first, 1)
	n := min(MaxSteps, max(len(s), 2))
	sums := make([]float64, n)
	width := float64(span) / float64(n)
	for i := range s[:len(s)-1] {
		v, from, to := of(&s[i]), float64(s[i].At-first), float64(s[i+1].At-first)
		for k := int(from / width); k < n && float64(k)*width < to; k++ {
			part := math.Min(to, float64(k+1)*width) - math.Max(from, float64(k)*width)
			sums[k] += v * math.Max(part, 0) / width
		}
	}
	xy := make(plotter.XYs, 0, n+1)
	for k, v := range sums {
		xy = append(xy, plotter.XY{X: float64(k) * width / 86400e3, Y: v})
	}
	return append(xy, plotter.XY{X: float64(span) / 86400e3, Y: sums[n-1]})
}

func queue(list []*replay.Result) (*plot.Plot, error) {
	p := blank(list, "Jobs waiting", "days", "jobs")
	return p, overTime(p, list, func(s *replay.Sample) float64 { return float64(s.Queued) })
}

func utilisation(list []*replay.Result) (*plot.Plot, error) {
	p := blank(list, "CPUs in use", "days", "CPUs")
	return p, overTime(p, list, func(s *replay.Sample) float64 { return float64(s.CPUs) })
}

// wait draws, for each class of sizes, the mean wait as a bar and the longest as a mark.
func wait(list []*replay.Result) (*plot.Plot, error) {
	p := blank(list, "Wait by job size (bar: mean, mark: longest)", "CPUs", "hours, logarithmic")
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	const least = 1.0 / 60 // a minute: the scale has no zero
	p.Y.Min = least
	names, at := sizes(list)
	width := 0.8 / float64(len(list))
	for i, r := range list {
		var longest plotter.XYs
		for _, c := range r.Summary.Sizes {
			x := float64(at[c.To]) + width*(float64(i)-float64(len(list)-1)/2)
			bar, err := plotter.NewPolygon(plotter.XYs{{X: x - width*.45, Y: least}, {X: x - width*.45, Y: hours(c.MeanWait, least)},
				{X: x + width*.45, Y: hours(c.MeanWait, least)}, {X: x + width*.45, Y: least}})
			if err != nil {
				return nil, err
			}
			bar.Color, bar.LineStyle.Width = colours[i], 0
			p.Add(bar)
			longest = append(longest, plotter.XY{X: x, Y: hours(c.LongestWait, least)})
			if c.To == r.Summary.Sizes[0].To {
				p.Legend.Add(r.Summary.Policy, bar)
			}
		}
		marks, err := plotter.NewScatter(longest)
		if err != nil {
			return nil, err
		}
		marks.Color, marks.Radius = colours[i], vg.Points(2.5)
		p.Add(marks)
	}
	p.NominalX(names...)
	p.Y.Max *= 6 // room for the legend
	return p, nil
}

func hours(s, least float64) float64 { return math.Max(s/3600, least) }

// sizes names the classes that occur in any of the replays, and tells each one's place.
func sizes(list []*replay.Result) (names []string, at map[uint64]int) {
	at = map[uint64]int{}
	for k := uint(0); k <= 32; k++ {
		for _, r := range list {
			for _, c := range r.Summary.Sizes {
				if _, there := at[c.To]; c.To != 1<<k || there {
					continue
				}
				at[c.To] = len(names)
				if c.From == c.To {
					names = append(names, fmt.Sprint(c.To))
				} else {
					names = append(names, fmt.Sprintf("%d-%d", c.From, c.To))
				}
			}
		}
	}
	return names, at
}
