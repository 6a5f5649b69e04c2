// Package chart draws values over time as an SVG file: panels with a common time axis, one above the other.
package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
)

// Chart is a drawing. All panels have the same axis of time.
type Chart struct {
	Title  string
	Panels []Panel
	// Marks are times with a text, such as the begin of a step.
	Marks []Mark
}

// Panel has an axis of its own for the values.
type Panel struct {
	// Label says what the values are, with their unit.
	Label string
	// Log makes the axis of the values logarithmic. Values below 1 are then drawn as 1.
	Log   bool
	Lines []Line
}

// Line is a series of values.
type Line struct {
	Name   string
	Color  Color
	Dashed bool
	// Steps means that a value holds until the next one. Otherwise values are joined.
	Steps  bool
	Points []Point
}

// Point is a value at a time, in seconds. A value that is not a number interrupts the line.
type Point struct{ Seconds, Value float64 }

// Mark is a vertical line at a time, in seconds.
type Mark struct {
	Seconds float64
	Text    string
}

// Color is the number of a color. Lines of the same kind have the same number in all panels.
type Color int

// colors can be told apart by people who see colors differently (Okabe and Ito).
var colors = [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

func (c Color) String() string { return colors[int(c)%len(colors)] }

// These are sizes in pixels.
const (
	width       = 1000
	left        = 80
	right       = 190
	top         = 64
	panelHeight = 190
	gap         = 26
	bottom      = 52
)

// SVG returns the drawing.
func (c Chart) SVG() []byte {
	end := c.endTime()
	height := top + len(c.Panels)*(panelHeight+gap) - gap + bottom
	d := &drawing{end: end}
	d.writef(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`, width, height, width, height)
	d.writef(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	d.writeText(left, 24, "start", "#000", 16, c.Title)
	for i, p := range c.Panels {
		d.drawPanel(p, top+i*(panelHeight+gap))
	}
	base := top + len(c.Panels)*(panelHeight+gap) - gap
	for i, m := range c.Marks {
		x := d.x(m.Seconds)
		d.writef(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#888" stroke-dasharray="2 3"/>`, x, top, x, base)
		d.writeText(x+3, float64(top-6-13*(i%2)), "start", "#555", 11, m.Text) // in two rows, so that texts do not overlap
	}
	for _, s := range roundTicks(0, end, 10) {
		d.writeText(d.x(s), float64(base+18), "middle", "#000", 12, numberText(s))
	}
	d.writeText(float64(left+width-right)/2, float64(base+40), "middle", "#000", 12, "time (s)")
	d.writef("</svg>")
	return d.Bytes()
}

// endTime returns the time of the last point or mark, at least 1.
func (c Chart) endTime() float64 {
	end := 1.0
	for _, p := range c.Panels {
		for _, l := range p.Lines {
			for _, at := range l.Points {
				end = max(end, at.Seconds)
			}
		}
	}
	for _, m := range c.Marks {
		end = max(end, m.Seconds)
	}
	return end
}

type drawing struct {
	bytes.Buffer

	end float64
}

func (d *drawing) writef(format string, args ...any) {
	fmt.Fprintf(&d.Buffer, format+"\n", args...)
}

func (d *drawing) writeText(x, y float64, anchor, color string, size int, text string) {
	var escaped bytes.Buffer
	_ = xml.EscapeText(&escaped, []byte(text)) // a buffer takes everything
	d.writef(`<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" font-size="%d">%s</text>`, x, y, anchor, color, size, &escaped)
}

// x returns the position of a time.
func (d *drawing) x(seconds float64) float64 {
	return left + seconds/d.end*(width-left-right)
}

// drawPanel draws a panel whose upper edge is at y.
func (d *drawing) drawPanel(p Panel, y int) {
	axis := axisOf(p)
	at := func(v float64) float64 { return float64(y) + panelHeight*(1-axis.shareOf(v)) }
	for _, s := range roundTicks(0, d.end, 10) {
		d.writef(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#f0f0f0"/>`, d.x(s), y, d.x(s), y+panelHeight)
	}
	for _, v := range axis.ticks {
		d.writef(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`, left, at(v), width-right, at(v))
		d.writeText(left-6, at(v)+4, "end", "#000", 12, numberText(v))
	}
	d.writef(`<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#444"/>`, left, y, width-left-right, panelHeight)
	d.writef(`<g transform="rotate(-90 22 %d)">`, y+panelHeight/2)
	d.writeText(22, float64(y+panelHeight/2), "middle", "#000", 12, p.Label)
	d.writef(`</g>`)
	for i, l := range p.Lines {
		dash := ""
		if l.Dashed {
			dash = ` stroke-dasharray="5 4"`
		}
		d.writef(`<path fill="none" stroke="%s" stroke-width="1.6"%s d="%s"/>`, l.Color, dash, d.pathOf(l, at))
		row := float64(y + 12 + i*17)
		d.writef(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="%s" stroke-width="2"%s/>`, width-right+10, row, width-right+34, row, l.Color, dash)
		d.writeText(width-right+40, row+4, "start", "#000", 12, l.Name)
	}
}

// pathOf returns the path of a line.
func (d *drawing) pathOf(l Line, at func(float64) float64) string {
	var out bytes.Buffer
	draws := false
	for i, p := range l.Points {
		switch {
		case math.IsNaN(p.Value):
			draws = false
			continue
		case !draws:
			fmt.Fprintf(&out, "M%.1f %.1f", d.x(p.Seconds), at(p.Value))
		case l.Steps:
			fmt.Fprintf(&out, "L%.1f %.1fL%.1f %.1f", d.x(p.Seconds), at(l.Points[i-1].Value), d.x(p.Seconds), at(p.Value))
		default:
			fmt.Fprintf(&out, "L%.1f %.1f", d.x(p.Seconds), at(p.Value))
		}
		draws = true
	}
	return out.String()
}

// axis is the axis of a panel's values.
type axis struct {
	low, high float64
	log       bool
	ticks     []float64
}

// shareOf returns the position of a value on the axis, from 0 to 1.
func (a axis) shareOf(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		low, high, v = math.Log10(low), math.Log10(high), math.Log10(max(v, 1))
	}
	return min(max((v-low)/(high-low), 0), 1)
}

func axisOf(p Panel) axis {
	low, high := math.Inf(1), 0.0
	for _, l := range p.Lines {
		for _, at := range l.Points {
			if !math.IsNaN(at.Value) {
				low, high = min(low, at.Value), max(high, at.Value)
			}
		}
	}
	if !p.Log {
		a := axis{high: max(high, 1) * 1.05}
		a.ticks = roundTicks(0, a.high, 5)
		return a
	}
	if math.IsInf(low, 1) {
		low, high = 1, 10
	}
	low, high = max(low, 1)/1.3, max(high, 2)*1.3
	a := axis{low: max(low, 1), high: high, log: true}
	for power := 1.0; power <= high; power *= 10 {
		for _, n := range []float64{1, 2, 5} {
			if v := n * power; v >= a.low && v <= high {
				a.ticks = append(a.ticks, v)
			}
		}
	}
	return a
}

// roundTicks returns about count round numbers from low to high.
func roundTicks(low, high float64, count int) (out []float64) {
	step := (high - low) / float64(count)
	power := math.Pow(10, math.Floor(math.Log10(step)))
	for _, n := range []float64{1, 2, 5, 10} {
		if n*power >= step {
			step = n * power
			break
		}
	}
	for v := math.Ceil(low/step) * step; v <= high*(1+1e-9); v += step {
		out = append(out, v)
	}
	return out
}

func numberText(v float64) string { return strconv.FormatFloat(math.Round(v*1e6)/1e6, 'f', -1, 64) }
