package conf

import "strings"

// Node gives the node of that name; nil when there is none.
func (c *Config) Node(name string) *Node {
	for i := range c.Nodes {
		if c.Nodes[i].Name == name {
			return &c.Nodes[i]
		}
	}
	return nil
}

// Controller gives the replica of that name; nil when there is none.
func (c *Config) Controller(name string) *Controller {
	for i := range c.Controllers {
		if c.Controllers[i].Name == name {
			return &c.Controllers[i]
		}
	}
	return nil
}

// NodePath gives pattern (SpoolDir or NodeRunDir) for one node.
func NodePath(pattern, node string) string { return strings.ReplaceAll(pattern, "%n", node) }

// HasParameter tells whether SlurmdParameters lists name.
func (c *Config) HasParameter(name string) bool {
	for _, p := range c.SlurmdParameters {
		if strings.EqualFold(p, name) {
			return true
		}
	}
	return false
}
