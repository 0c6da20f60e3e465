/* The style sheet and scripts of pages, as embed.cmake makes them from the files of this folder. */
#ifndef SMALLWORLD_PAGE_ASSETS_H
#define SMALLWORLD_PAGE_ASSETS_H

extern const char chart_css[]; /* colours, and charts: also for .svg files */
extern const char page_css[];
extern const char chart_js[]; /* reads charts' values under the pointer */
extern const char show_js[];  /* colours text */

#endif
