/* SIGINT and SIGTERM as a wish to stop soon, in good order. */
#ifndef SMALLWORLD_CORE_STOP_H
#define SMALLWORLD_CORE_STOP_H

/* From here on the first such signal is only remembered; the second one ends the program. */
void stop_catch(void);

/* The signal remembered since stop_catch, or 0. */
int stop_signal(void);

#endif
