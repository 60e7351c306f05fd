package cli

import (
	"cmp"
	"image/color"
	"slices"

	gonumplot "gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"sbench/internal/api"
)

// plotFront draws throughput per GPU over latency, with the Pareto front, into
// an SVG or PNG file.
func plotFront(path string, c api.Comparison) error {
	r := c.Recommendation
	p := gonumplot.New()
	p.Title.Text = "Throughput and latency"
	if c.Vary != "" {
		p.Title.Text += " by " + c.Vary
	}
	p.X.Label.Text, p.Y.Label.Text = r.Latency+" in s", "output tokens/s per GPU"
	p.Add(plotter.NewGrid())
	var all, front plotter.XYs
	var names []string
	for _, x := range r.Points {
		if x.PerGPU == nil || x.Latency == nil {
			continue
		}
		at := plotter.XY{X: *x.Latency, Y: *x.PerGPU}
		all, names = append(all, at), append(names, " "+axisText(x.Level))
		if x.Front {
			front = append(front, at)
		}
	}
	points, err := plotter.NewScatter(all)
	if err != nil {
		return err
	}
	points.GlyphStyle = draw.GlyphStyle{Color: color.RGBA{R: 0x1f, G: 0x4e, B: 0x79, A: 0xff}, Radius: vg.Points(3), Shape: draw.CircleGlyph{}}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: all, Labels: names})
	if err != nil {
		return err
	}
	p.Add(points, labels)
	if len(front) > 1 {
		slices.SortFunc(front, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
		line, err := plotter.NewLine(front)
		if err != nil {
			return err
		}
		line.StepStyle = plotter.PostStep
		line.LineStyle = draw.LineStyle{Color: color.RGBA{R: 0xb0, G: 0x30, B: 0x20, A: 0xff}, Width: vg.Points(1)}
		p.Add(line)
		p.Legend.Add("Pareto front", line)
	}
	return p.Save(16*vg.Centimeter, 11*vg.Centimeter, path)
}
