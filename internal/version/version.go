// Package version holds the version that the build stamped.
package version

// Version is set by the linker.
var Version = "dev"
