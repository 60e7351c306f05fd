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
	"sbench/internal/compare"
)

// plotAxis is an axis of the plane that a front is drawn on.
type plotAxis struct {
	title, label string
	of           func(compare.Point) *float64
}

func paretoAxis(r *compare.Recommendation, i int) plotAxis {
	switch r.Axes[i] {
	case compare.ParetoThroughput:
		return plotAxis{"throughput", "output tokens/s per GPU", func(p compare.Point) *float64 { return p.PerGPU }}
	case compare.ParetoQuality:
		return plotAxis{"quality", "quality score", func(p compare.Point) *float64 { return p.Quality }}
	}
	return plotAxis{"latency", r.Latency + " in s", func(p compare.Point) *float64 { return p.Latency }}
}

// plotFront draws the first two axes of the Pareto front, throughput per GPU over
// latency by default, into an SVG or PNG file.
func plotFront(path string, c api.Comparison) error {
	r := c.Recommendation
	p := gonumplot.New()
	x, y := paretoAxis(r, 1), paretoAxis(r, 0)
	p.Title.Text = y.title + " and " + x.title
	if c.Vary != "" {
		p.Title.Text += " by " + c.Vary
	}
	p.X.Label.Text, p.Y.Label.Text = x.label, y.label
	p.Add(plotter.NewGrid())
	var all, front plotter.XYs
	var names []string
	for _, point := range r.Points {
		if x.of(point) == nil || y.of(point) == nil {
			continue
		}
		at := plotter.XY{X: *x.of(point), Y: *y.of(point)}
		all, names = append(all, at), append(names, " "+axisText(point.Level))
		if point.Front {
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
